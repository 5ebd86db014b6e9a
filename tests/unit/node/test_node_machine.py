"""Stories of pods, told as events; the machine answers with instructions."""

import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.api.podspec import RunPod
from dray.node import machine as m
from dray.node import pod_events as s


def pod_machine(*, restart="Always", containers=1, init=(), claims=True, **spec):
    body = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 7,
            "containers": [
                {"name": f"c{n}"} if isinstance(n, int) else n
                for n in (range(containers) if isinstance(containers, int) else containers)
            ],
            "initContainers": list(init),
            "resourceClaims": [{"name": "a", "resourceClaimName": "a"}] if claims else [],
            **spec,
        },
    }
    return m.PodMachine.of(msgspec.convert(body, RunPod), m.Backoff(10, 300))


def tell(machine, *events, now=100.0):
    """Give events, return the instructions that are not reports or notes."""
    found = []
    for event in events:
        found += machine.handle(event, now)
    return [i for i in found if not isinstance(i, s.Report | s.RecordEvent)]


def starts(instructions):
    return [(i.container.name, i.attempt) for i in instructions if isinstance(i, s.StartContainer)]


def test_claims_come_before_containers():
    machine = pod_machine()
    assert tell(machine, s.Restored()) == [s.PrepareClaims()]
    assert machine.phase == "Pending"
    assert starts(tell(machine, s.ClaimsPrepared())) == [("c0", 0)]
    tell(machine, s.Started("c0", 0))
    assert machine.phase == "Running"
    assert machine.main[0].is_ready


def test_a_pod_without_claims_starts_at_once():
    assert starts(tell(pod_machine(claims=False), s.Restored())) == [("c0", 0)]


def test_a_failed_prepare_is_tried_again_later_and_later():
    machine = pod_machine()
    tell(machine, s.Restored())
    pauses = []
    for _ in range(10):
        (wake,) = tell(machine, s.PrepareFailed("no"))
        pauses.append(wake.seconds)
        assert tell(machine, s.TimerFired("prepare")) == [s.PrepareClaims()]
    assert pauses[:3] == [1.0, 2.0, 4.0]
    assert pauses[-1] == 60.0


def test_deletion_stops_containers_then_releases_then_removes():
    machine = pod_machine(containers=2)
    tell(machine, s.Restored(), s.ClaimsPrepared(), s.Started("c0", 0), s.Started("c1", 0))
    stops = tell(machine, s.StopRequested(7.0))
    assert [(i.container.name, i.grace_seconds) for i in stops] == [("c0", 7.0), ("c1", 7.0)]
    assert tell(machine, s.Exited("c0", 0, 0)) == []
    assert tell(machine, s.Exited("c1", 0, 143)) == [s.ReleaseClaims()]
    assert machine.phase == "Running"  # not terminal while claims are held
    assert tell(machine, s.ClaimsReleased()) == [s.Remove()]
    assert machine.phase == "Failed"


def test_deletion_while_preparing_waits_for_the_answer():
    for answer in (s.ClaimsPrepared(), s.PrepareFailed("no")):
        machine = pod_machine()
        tell(machine, s.Restored())
        assert tell(machine, s.StopRequested(7.0)) == []
        assert tell(machine, answer) == [s.ReleaseClaims()]


def test_a_container_that_comes_up_after_the_end_was_decided_is_stopped():
    machine = pod_machine()
    tell(machine, s.Restored(), s.ClaimsPrepared())
    assert tell(machine, s.StopRequested(7.0)) == []
    (stop,) = tell(machine, s.Started("c0", 0))
    assert isinstance(stop, s.StopContainer)
    assert tell(machine, s.Exited("c0", 0, 0)) == [s.ReleaseClaims()]


def test_a_second_request_hastens_the_end_if_its_grace_is_shorter():
    machine = pod_machine()
    tell(machine, s.Restored(), s.ClaimsPrepared(), s.Started("c0", 0))
    (first,) = tell(machine, s.StopRequested(10.0))
    assert (first.grace_seconds, first.is_hastened) == (10.0, False)
    (second,) = tell(machine, s.StopRequested(1.0))
    assert (second.grace_seconds, second.is_hastened) == (1.0, True)
    assert tell(machine, s.StopRequested(5.0)) == []
    (last,) = tell(machine, s.StopRequested(0.0))
    assert (last.grace_seconds, last.is_hastened) == (0.0, True)
    assert tell(machine, s.Exited("c0", 0, 137)) == [s.ReleaseClaims()]


def test_a_failed_release_is_tried_again():
    machine = pod_machine(restart="Never")
    tell(machine, s.Restored(), s.ClaimsPrepared(), s.Started("c0", 0))
    assert tell(machine, s.Exited("c0", 0, 0)) == [s.ReleaseClaims()]
    assert tell(machine, s.ReleaseFailed("busy")) == [s.SetTimer("release", 2.0)]
    assert tell(machine, s.TimerFired("release")) == [s.ReleaseClaims()]
    tell(machine, s.ClaimsReleased())
    assert machine.phase == "Succeeded"


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_restart_policies(policy, code, again):
    machine = pod_machine(restart=policy, claims=False)
    tell(machine, s.Restored(), s.Started("c0", 0))
    assert (starts(tell(machine, s.Exited("c0", 0, code))) == [("c0", 1)]) is again


def test_back_off_doubles_and_is_forgiven_after_a_long_run():
    machine = pod_machine(claims=False)
    tell(machine, s.Restored(), s.Started("c0", 0))
    assert starts(tell(machine, s.Exited("c0", 0, 1))) == [("c0", 1)]
    pauses = []
    for attempt in range(1, 8):
        tell(machine, s.Started("c0", attempt))
        (wake,) = tell(machine, s.Exited("c0", attempt, 1))
        pauses.append(wake.seconds)
        assert machine.main[0].waiting_reason == "CrashLoopBackOff"
        assert starts(tell(machine, s.TimerFired("start", "c0"))) == [("c0", attempt + 1)]
    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    tell(machine, s.Started("c0", 8), now=1000.0)
    assert starts(tell(machine, s.Exited("c0", 8, 1), now=1601.0)) == [("c0", 9)]


def test_init_containers_run_one_after_the_other():
    machine = pod_machine(init=[{"name": "i0"}, {"name": "i1"}], claims=False)
    assert starts(tell(machine, s.Restored())) == [("i0", 0)]
    assert tell(machine, s.Started("i0", 0))[-1:] in ([], [s.Probe(machine.init[0].spec, 0)])
    assert starts(tell(machine, s.Exited("i0", 0, 0))) == [("i1", 0)]
    tell(machine, s.Started("i1", 0))
    assert starts(tell(machine, s.Exited("i1", 0, 0))) == [("c0", 0)]


def test_a_failing_init_container_fails_a_pod_that_never_restarts():
    machine = pod_machine(init=[{"name": "i0"}], restart="Never")
    tell(machine, s.Restored(), s.ClaimsPrepared(), s.Started("i0", 0))
    assert tell(machine, s.Exited("i0", 0, 1)) == [s.ReleaseClaims()]
    tell(machine, s.ClaimsReleased())
    assert machine.phase == "Failed"


def test_sidecars_stay_while_containers_run_and_end_after_them():
    sidecar = {"name": "side", "restartPolicy": "Always"}
    machine = pod_machine(init=[sidecar, {"name": "i1"}], restart="Never", claims=False)
    assert starts(tell(machine, s.Restored())) == [("side", 0)]
    assert starts(tell(machine, s.Started("side", 0))) == [("i1", 0)]
    tell(machine, s.Started("i1", 0))
    assert starts(tell(machine, s.Exited("i1", 0, 0))) == [("c0", 0)]
    tell(machine, s.Started("c0", 0))
    (stop,) = tell(machine, s.Exited("c0", 0, 0))
    assert stop.container.name == "side"
    tell(machine, s.Exited("side", 0, 143))
    assert machine.phase == "Succeeded"  # how a sidecar ends does not count


def test_a_startup_probe_holds_readiness_and_the_next_container_back():
    sidecar = {"name": "side", "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["true"]}}}
    machine = pod_machine(init=[sidecar], claims=False)
    tell(machine, s.Restored())
    assert starts(tell(machine, s.Started("side", 0))) == []
    assert starts(tell(machine, s.Probed("side", 0, "startup", True))) == [("c0", 0)]


def test_a_liveness_probe_that_fails_restarts_the_container():
    box = {"name": "c0", "livenessProbe": {"exec": {"command": ["true"]}, "terminationGracePeriodSeconds": 3}}
    machine = pod_machine(containers=[box], claims=False)
    tell(machine, s.Restored(), s.Started("c0", 0))
    (stop,) = tell(machine, s.Probed("c0", 0, "liveness", False, "dead"))
    assert stop.grace_seconds == 3.0
    assert tell(machine, s.Probed("c0", 0, "liveness", False, "dead")) == []  # it is already being stopped
    assert starts(tell(machine, s.Exited("c0", 0, 137))) == [("c0", 1)]


def test_late_events_of_an_earlier_run_change_nothing():
    machine = pod_machine(claims=False)
    tell(machine, s.Restored(), s.Started("c0", 0), s.Exited("c0", 0, 1), s.Started("c0", 1))
    before = repr(machine)
    assert tell(machine, s.Exited("c0", 0, 9), s.Probed("c0", 0, "liveness", False), s.Started("c0", 0)) == []
    assert repr(machine) == before


def test_what_a_previous_agent_left_is_taken_over():
    machine = pod_machine(init=[{"name": "i0"}], restart="Always")
    found = [s.Found("i0", 0, 50.0, 0, 51.0), s.Found("c0", 2, 60.0)]
    assert tell(machine, s.Restored(found)) == [s.PrepareClaims(is_running=True)]
    assert starts(tell(machine, s.ClaimsPrepared())) == []
    assert (machine.phase, machine.main[0].attempt, machine.main[0].started_at) == ("Running", 2, 60.0)


def test_a_container_that_ended_meanwhile_is_judged_by_the_policy():
    for policy, expected in (("Always", [("c0", 1)]), ("Never", [])):
        machine = pod_machine(restart=policy, claims=False)
        assert starts(tell(machine, s.Restored([s.Found("c0", 0, 60.0, 0, 61.0)]))) == expected
    assert machine.phase == "Succeeded"


def test_the_deadline_fails_the_pod():
    machine = pod_machine(claims=False)
    tell(machine, s.Restored(), s.Started("c0", 0), s.TimerFired("deadline"), s.Exited("c0", 0, 143))
    assert (machine.phase, machine.failed_reason) == ("Failed", "DeadlineExceeded")


def test_a_start_that_fails_is_tried_again_whatever_the_policy():
    machine = pod_machine(restart="Never", claims=False)
    tell(machine, s.Restored())
    (wake,) = tell(machine, s.StartFailed("c0", 0, "RunContainerError", "no such program"))
    assert (wake.timer, wake.container) == ("start", "c0")
    assert machine.main[0].waiting_message == "no such program"
    assert starts(tell(machine, s.TimerFired("start", "c0"))) == [("c0", 0)]


EVENTS = st.one_of(
    st.just(s.ClaimsPrepared()),
    st.just(s.PrepareFailed("x")),
    st.just(s.ClaimsReleased()),
    st.just(s.ReleaseFailed("x")),
    st.builds(s.Started, st.sampled_from(["c0", "c1", "i0", "s0"]), st.integers(0, 3)),
    st.builds(s.StartFailed, st.sampled_from(["c0", "i0"]), st.integers(0, 3), st.just("r"), st.just("m")),
    st.builds(
        s.Exited, st.sampled_from(["c0", "c1", "i0", "s0"]), st.integers(0, 3), st.sampled_from([0, 1])
    ),
    st.builds(
        s.Probed,
        st.sampled_from(["c0", "s0"]),
        st.integers(0, 3),
        st.sampled_from(["readiness", "liveness", "startup"]),
        st.booleans(),
    ),
    st.builds(s.TimerFired, st.sampled_from(s.Timer), st.sampled_from(["c0", "i0", "s0"])),
    st.builds(s.StopRequested, st.sampled_from([0.0, 5.0])),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(EVENTS, max_size=25),
    st.sampled_from(["Always", "OnFailure", "Never"]),
    st.lists(
        st.builds(
            s.Found,
            st.sampled_from(["c0", "c1", "i0", "s0"]),
            st.integers(0, 1),
            st.just(50.0),
            st.sampled_from([None, 0, 1]),
        ),
        max_size=3,
    ),
)
def test_whatever_happens_the_rules_hold(events, policy, found):
    machine = pod_machine(
        containers=2, init=[{"name": "s0", "restartPolicy": "Always"}, {"name": "i0"}], restart=policy
    )
    order = list(m.Stage)
    is_prepared, stage, asked = False, 0, 0
    for event in [s.Restored(found), *events]:
        before = machine.stage
        is_prepared = is_prepared or (isinstance(event, s.ClaimsPrepared) and before == m.Stage.PREPARING)
        for instruction in machine.handle(event, 100.0):
            if isinstance(instruction, s.StartContainer):
                assert is_prepared
                assert machine.stage in (m.Stage.INITIALIZING, m.Stage.RUNNING, m.Stage.STOPPING)
                assert order.index(before) < order.index(m.Stage.STOPPING)
            if isinstance(instruction, s.ReleaseClaims):
                asked += 1
                assert not any(state.is_active for state in machine.containers)
            if isinstance(instruction, s.Remove):
                assert machine.stage == m.Stage.FINISHED
                assert machine.is_deleted
        assert order.index(machine.stage) >= stage, "a stage never comes back"
        stage = order.index(machine.stage)
        if machine.stage == m.Stage.FINISHED:
            assert asked >= 1
            assert machine.phase in ("Succeeded", "Failed")


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=25), st.sampled_from(["Always", "OnFailure", "Never"]))
def test_the_same_events_give_the_same_instructions(events, policy):
    def replay():
        machine = pod_machine(containers=2, init=[{"name": "s0", "restartPolicy": "Always"}], restart=policy)
        return [machine.handle(event, 100.0 + n) for n, event in enumerate([s.Restored(), *events])]

    assert replay() == replay()


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=25), st.sampled_from(["Always", "OnFailure", "Never"]))
def test_a_restored_machine_starts_nothing_that_runs_and_forgets_no_restart(events, policy):
    init = [{"name": "s0", "restartPolicy": "Always"}, {"name": "i0"}]
    machine = pod_machine(containers=2, init=init, restart=policy)
    for event in [s.Restored(), *events]:
        machine.handle(event, 100.0)
    left = [
        s.Found(state.spec.name, state.attempt, 50.0, state.ended.exit_code if state.ended else None)
        for state in machine.containers
        if state.stage in (m.UP, m.DOWN)
    ]
    again = pod_machine(containers=2, init=init, restart=policy)
    told = [*again.handle(s.Restored(left), 200.0), *again.handle(s.ClaimsPrepared(), 200.0)]
    running = {found.name for found in left if found.exit_code is None}
    assert not {name for name, _ in starts(told)} & running
    assert {state.spec.name: state.attempt for state in again.containers if state.spec.name in running} == {
        found.name: found.attempt for found in left if found.name in running
    }


def test_a_sidecar_that_ended_while_no_agent_was_there_is_started_again():
    machine = pod_machine(init=[{"name": "side", "restartPolicy": "Always"}], claims=False)
    found = [s.Found("side", 0, 50.0, 1, 51.0), s.Found("c0", 0, 60.0)]
    assert starts(tell(machine, s.Restored(found))) == [("side", 1)]
    assert starts(tell(machine, s.Started("side", 1))) == []
    assert machine.stage is m.Stage.RUNNING


def test_every_event_has_a_stage_in_which_it_matters():
    known = {event for _, event in m.TRANSITIONS}
    assert known == {*typing.get_args(s.Event), *s.Timer} - {s.TimerFired}


# --- claims of a pod that runs -------------------------------------------------------------------


def running_machine(**spec):
    machine = pod_machine(claims=False, **spec)
    tell(machine, s.Restored(), s.Started("c0", 0))
    return machine


def test_a_running_pod_is_given_its_new_claims_and_its_containers_go_on():
    machine = running_machine()
    assert machine.claims_problem is None
    assert tell(machine, s.ClaimsChanged()) == [s.PrepareClaims(is_running=True)]
    assert tell(machine, s.ClaimsPrepared(2)) == []
    assert (machine.claims_problem, machine.observed_generation) == ("", 2)
    # At its end it has claims to release, although it began without any.
    tell(machine, s.StopRequested(1.0))
    assert tell(machine, s.Exited("c0", 0, 143)) == [s.ReleaseClaims()]


def test_a_change_while_claims_are_prepared_is_looked_at_afterwards():
    machine = running_machine()
    tell(machine, s.ClaimsChanged())
    assert tell(machine, s.ClaimsChanged()) == []
    assert tell(machine, s.ClaimsPrepared(2)) == [s.PrepareClaims(is_running=True)]
    assert tell(machine, s.ClaimsChanged()) == []
    assert tell(machine, s.PrepareFailed("no", generation=3)) == [s.PrepareClaims(is_running=True)]
    assert tell(machine, s.ClaimsPrepared(4)) == []
    assert machine.observed_generation == 4


def test_a_claim_that_the_scheduler_has_not_decided_is_looked_at_often_and_quietly():
    machine = running_machine()
    tell(machine, s.ClaimsChanged())
    pauses = []
    for _ in range(10):
        answer = machine.handle(s.PrepareFailed("not allocated", is_waiting=True, generation=2), 100.0)
        assert not [each for each in answer if isinstance(each, s.RecordEvent)]
        pauses.append(answer[-1].seconds)
        assert tell(machine, s.TimerFired("prepare")) == [s.PrepareClaims(is_running=True)]
    assert pauses[0] == 0.2
    assert pauses[-1] == 3.0
    # Seen is seen: what it no longer lists is released, whether the new one is there or not.
    assert (machine.claims_problem, machine.observed_generation) == ("not allocated", 2)


def test_a_driver_that_fails_to_attach_is_told_and_tried_again_less_and_less():
    machine = running_machine()
    tell(machine, s.ClaimsChanged())
    for _ in range(12):
        answer = machine.handle(s.PrepareFailed("no"), 100.0)
        tell(machine, s.TimerFired("prepare"))
    assert s.RecordEvent("FailedPrepareDynamicResources", "no", is_warning=True) in answer
    assert answer[-1].seconds == 60.0
    assert machine.observed_generation == 0


def test_a_pod_that_stops_waits_for_the_claims_that_are_under_way():
    machine = running_machine()
    tell(machine, s.ClaimsChanged(), s.StopRequested(1.0))
    assert tell(machine, s.Exited("c0", 0, 143)) == []
    assert tell(machine, s.ClaimsPrepared(2)) == [s.ReleaseClaims()]
    assert tell(machine, s.ClaimsChanged()) == []


def test_after_a_restart_of_the_agent_a_claim_that_is_not_there_yet_does_not_hold_up_the_pod():
    machine = pod_machine()
    found = [s.Found("c0", 0, 60.0)]
    assert tell(machine, s.Restored(found)) == [s.PrepareClaims(is_running=True)]
    tell(machine, s.PrepareFailed("not allocated", is_waiting=True, generation=2))
    assert machine.stage is m.Stage.RUNNING
    assert machine.main[0].is_ready
    assert machine.claims_problem == "not allocated"


def test_a_pod_that_never_ran_waits_for_all_its_claims():
    machine = pod_machine()
    tell(machine, s.Restored(), s.PrepareFailed("not allocated", is_waiting=True, generation=1))
    assert machine.stage is m.Stage.PREPARING
    assert tell(machine, s.ClaimsChanged()) == []
    assert [type(each) for each in tell(machine, s.ClaimsPrepared(2))] == [s.StartContainer, s.PrepareClaims]


def test_a_claim_that_was_lost_while_no_agent_was_here_is_released_by_the_next():
    machine = pod_machine(claims=False)
    pod = msgspec.structs.replace(
        machine.pod, metadata=msgspec.structs.replace(machine.pod.metadata, generation=3)
    )
    machine = m.PodMachine.of(pod)
    assert tell(machine, s.Restored([s.Found("c0", 0, 60.0)])) == [s.PrepareClaims(is_running=True)]
    tell(machine, s.ClaimsPrepared(3))
    assert machine.observed_generation == 3
