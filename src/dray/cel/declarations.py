"""Which functions there are: name, overload, argument types, result type.

The table is data: one overload per line, `name overload receiver.(arguments) -> result`.
Families that follow a pattern (comparisons, sorting, time accessors, formats) are
generated. The order of the overloads of one function is part of the language: the
first one that fits decides the result type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from dray.cel import kinds
from dray.cel.kinds import CelType, list_of, map_of, optional_of, parameter, type_of

_TABLE = """
!_ logical_not (bool) -> bool
-_ negate_double (double) -> double
-_ negate_int64 (int) -> int
@in in_list (A, list(A)) -> bool
@in in_map (A, map(A, B)) -> bool
@not_strictly_false not_strictly_false (bool) -> bool
_!=_ not_equals (A, A) -> bool
_%_ modulo_int64 (int, int) -> int
_%_ modulo_uint64 (uint, uint) -> uint
_&&_ logical_and (bool, bool) -> bool
_*_ multiply_double (double, double) -> double
_*_ multiply_int64 (int, int) -> int
_*_ multiply_uint64 (uint, uint) -> uint
_+_ add_bytes (bytes, bytes) -> bytes
_+_ add_double (double, double) -> double
_+_ add_duration_duration (duration, duration) -> duration
_+_ add_duration_timestamp (duration, timestamp) -> timestamp
_+_ add_timestamp_duration (timestamp, duration) -> timestamp
_+_ add_int64 (int, int) -> int
_+_ add_list (list(A), list(A)) -> list(A)
_+_ add_string (string, string) -> string
_+_ add_uint64 (uint, uint) -> uint
_-_ subtract_double (double, double) -> double
_-_ subtract_duration_duration (duration, duration) -> duration
_-_ subtract_int64 (int, int) -> int
_-_ subtract_timestamp_duration (timestamp, duration) -> timestamp
_-_ subtract_timestamp_timestamp (timestamp, timestamp) -> duration
_-_ subtract_uint64 (uint, uint) -> uint
_/_ divide_double (double, double) -> double
_/_ divide_int64 (int, int) -> int
_/_ divide_uint64 (uint, uint) -> uint
_==_ equals (A, A) -> bool
_?._ select_optional_field (dyn, string) -> optional(V)
_?_:_ conditional (bool, A, A) -> A
_[?_] list_optindex_optional_int (list(V), int) -> optional(V)
_[?_] optional_list_optindex_optional_int (optional(list(V)), int) -> optional(V)
_[?_] map_optindex_optional_value (map(K, V), K) -> optional(V)
_[?_] optional_map_optindex_optional_value (optional(map(K, V)), K) -> optional(V)
_[_] index_list (list(A), int) -> A
_[_] index_map (map(A, B), A) -> B
_[_] optional_list_index_int (optional(list(V)), int) -> optional(V)
_[_] optional_map_index_value (optional(map(K, V)), K) -> optional(V)
_||_ logical_or (bool, bool) -> bool
add quantity_add Quantity.(Quantity) -> Quantity
add quantity_add_int Quantity.(int) -> Quantity
allowed decision_allowed Decision.() -> bool
asApproximateFloat quantity_get_float Quantity.() -> double
asInteger quantity_get_int Quantity.() -> int
bool bool_to_bool (bool) -> bool
bool string_to_bool (string) -> bool
bytes bytes_to_bytes (bytes) -> bytes
bytes string_to_bytes (string) -> bytes
cel.@mapInsert @mapInsert_map_key_value (map(K, V), K, V) -> map(K, V)
cel.@mapInsert @mapInsert_map_map (map(K, V), map(K, V)) -> map(K, V)
charAt string_char_at_int string.(int) -> string
check pathcheck_check PathCheck.(string) -> Decision
check resourcecheck_check ResourceCheck.(string) -> Decision
cidr string_to_cidr (string) -> CIDR
compareTo quantity_compare_to Quantity.(Quantity) -> int
compareTo semver_compare_to Semver.(Semver) -> int
contains contains_string string.(string) -> bool
containsCIDR cidr_contains_cidr_string CIDR.(string) -> bool
containsCIDR cidr_contains_cidr CIDR.(CIDR) -> bool
containsIP cidr_contains_ip_string CIDR.(string) -> bool
containsIP cidr_contains_ip_ip CIDR.(IP) -> bool
distinct list_distinct list(T).() -> list(T)
double double_to_double (double) -> double
double int64_to_double (int) -> double
double string_to_double (string) -> double
double uint64_to_double (uint) -> double
duration duration_to_duration (duration) -> duration
duration string_to_duration (string) -> duration
dyn to_dyn (A) -> dyn
endsWith ends_with_string string.(string) -> bool
error decision_error Decision.() -> string
errored decision_errored Decision.() -> bool
family ip_family IP.() -> int
fieldSelector authorizer_fieldselector ResourceCheck.(string) -> ResourceCheck
find string_find_string string.(string) -> string
findAll string_find_all_string string.(string) -> list(string)
findAll string_find_all_string_int string.(string, int) -> list(string)
first list_first list(V).() -> optional(V)
flatten list_flatten list(list(T)).() -> list(T)
flatten list_flatten_int list(dyn).(int) -> list(dyn)
format string_format string.(list(dyn)) -> string
format.named format-named (string) -> optional(NamedFormat)
getEscapedPath url_get_escaped_path URL.() -> string
getHost url_get_host URL.() -> string
getHostname url_get_hostname URL.() -> string
getPort url_get_port URL.() -> string
getQuery url_get_query URL.() -> map(string, list(string))
getScheme url_get_scheme URL.() -> string
group authorizer_group Authorizer.(string) -> GroupCheck
hasValue optional_hasValue optional(V).() -> bool
indexOf list_a_index_of_int list(A).(A) -> int
indexOf string_index_of_string string.(string) -> int
indexOf string_index_of_string_int string.(string, int) -> int
int int64_to_int64 (int) -> int
int double_to_int64 (double) -> int
int duration_to_int64 (duration) -> int
int string_to_int64 (string) -> int
int timestamp_to_int64 (timestamp) -> int
int uint64_to_int64 (uint) -> int
ip string_to_ip (string) -> IP
ip cidr_ip CIDR.() -> IP
ip.isCanonical ip_is_canonical (string) -> bool
isCIDR is_cidr (string) -> bool
isGlobalUnicast ip_is_global_unicast IP.() -> bool
isGreaterThan quantity_is_greater_than Quantity.(Quantity) -> bool
isGreaterThan semver_is_greater_than Semver.(Semver) -> bool
isIP is_ip (string) -> bool
isInteger quantity_is_integer Quantity.() -> bool
isLessThan quantity_is_less_than Quantity.(Quantity) -> bool
isLessThan semver_is_less_than Semver.(Semver) -> bool
isLinkLocalMulticast ip_is_link_local_multicast IP.() -> bool
isLinkLocalUnicast ip_is_link_local_unicast IP.() -> bool
isLoopback ip_is_loopback IP.() -> bool
isQuantity is_quantity_string (string) -> bool
isSemver is_semver_string (string) -> bool
isSemver is_semver_string_bool (string, bool) -> bool
isURL is_url_string (string) -> bool
isUnspecified ip_is_unspecified IP.() -> bool
join list_join list(string).() -> string
join list_join_string list(string).(string) -> string
labelSelector authorizer_labelselector ResourceCheck.(string) -> ResourceCheck
last list_last list(V).() -> optional(V)
lastIndexOf list_a_last_index_of_int list(A).(A) -> int
lastIndexOf string_last_index_of_string string.(string) -> int
lastIndexOf string_last_index_of_string_int string.(string, int) -> int
lists.range lists_range (int) -> list(int)
lowerAscii string_lower_ascii string.() -> string
major semver_major Semver.() -> int
masked cidr_masked CIDR.() -> CIDR
matches matches (string, string) -> bool
matches matches_string string.(string) -> bool
minor semver_minor Semver.() -> int
name resourcecheck_name ResourceCheck.(string) -> ResourceCheck
namespace resourcecheck_namespace ResourceCheck.(string) -> ResourceCheck
optional.none optional_none () -> optional(V)
optional.of optional_of (V) -> optional(V)
optional.ofNonZeroValue optional_ofNonZeroValue (V) -> optional(V)
optional.unwrap optional_unwrap (list(optional(V))) -> list(V)
or optional_or_optional optional(V).(optional(V)) -> optional(V)
orValue optional_orValue_value optional(V).(V) -> V
patch semver_patch Semver.() -> int
path authorizer_path Authorizer.(string) -> PathCheck
prefixLength cidr_prefix_length CIDR.() -> int
quantity string_to_quantity (string) -> Quantity
reason decision_reason Decision.() -> string
replace string_replace_string_string string.(string, string) -> string
replace string_replace_string_string_int string.(string, string, int) -> string
resource groupcheck_resource GroupCheck.(string) -> ResourceCheck
reverse list_reverse list(T).() -> list(T)
semver string_to_semver (string) -> Semver
semver string_bool_to_semver (string, bool) -> Semver
serviceAccount authorizer_serviceaccount Authorizer.(string, string) -> Authorizer
sets.contains list_sets_contains_list (list(T), list(T)) -> bool
sets.equivalent list_sets_equivalent_list (list(T), list(T)) -> bool
sets.intersects list_sets_intersects_list (list(T), list(T)) -> bool
sign quantity_sign (Quantity) -> int
size size_bytes (bytes) -> int
size bytes_size bytes.() -> int
size size_list (list(A)) -> int
size list_size list(A).() -> int
size size_map (map(A, B)) -> int
size map_size map(A, B).() -> int
size size_string (string) -> int
size string_size string.() -> int
slice list_slice list(T).(int, int) -> list(T)
split string_split_string string.(string) -> list(string)
split string_split_string_int string.(string, int) -> list(string)
startsWith starts_with_string string.(string) -> bool
string string_to_string (string) -> string
string bool_to_string (bool) -> string
string bytes_to_string (bytes) -> string
string double_to_string (double) -> string
string duration_to_string (duration) -> string
string int64_to_string (int) -> string
string timestamp_to_string (timestamp) -> string
string uint64_to_string (uint) -> string
string ip_to_string (IP) -> string
string cidr_to_string (CIDR) -> string
strings.quote strings_quote (string) -> string
sub quantity_sub Quantity.(Quantity) -> Quantity
sub quantity_sub_int Quantity.(int) -> Quantity
subresource resourcecheck_subresource ResourceCheck.(string) -> ResourceCheck
substring string_substring_int string.(int) -> string
substring string_substring_int_int string.(int, int) -> string
sum list_int_sum_int list(int).() -> int
sum list_uint_sum_uint list(uint).() -> uint
sum list_double_sum_double list(double).() -> double
sum list_duration_sum_duration list(duration).() -> duration
timestamp timestamp_to_timestamp (timestamp) -> timestamp
timestamp int64_to_timestamp (int) -> timestamp
timestamp string_to_timestamp (string) -> timestamp
trim string_trim string.() -> string
type type (A) -> type(A)
uint uint64_to_uint64 (uint) -> uint
uint double_to_uint64 (double) -> uint
uint int64_to_uint64 (int) -> uint
uint string_to_uint64 (string) -> uint
unwrapOpt optional_unwrapOpt list(optional(V)).() -> list(V)
upperAscii string_upper_ascii string.() -> string
url string_to_url (string) -> URL
validate format-validate NamedFormat.(string) -> optional(list(string))
value optional_value optional(V).() -> V
"""

_INCLUDES = "includes list_includes_dyn_dyn dyn.(dyn) -> bool"

_COMPARABLE = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
_LONG_NAMES = {"duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp"}
_NUMBER_IDS = {"int": "int64", "uint": "uint64", "double": "double"}
FORMAT_NAMES = (
    "byte", "date", "datetime", "dns1035Label", "dns1035LabelPrefix", "dns1123Label", "dns1123LabelPrefix",
    "dns1123Subdomain", "dns1123SubdomainPrefix", "labelValue", "qualifiedName", "uri", "uuid",
)  # fmt: skip
_TIME_PARTS = {
    "getFullYear": "year",
    "getMonth": "month",
    "getDayOfYear": "day_of_year",
    "getDayOfMonth": "day_of_month",
    "getDate": "day_of_month_1_based",
    "getDayOfWeek": "day_of_week",
    "getHours": "hours",
    "getMinutes": "minutes",
    "getSeconds": "seconds",
    "getMilliseconds": "milliseconds",
}
_DURATION_PARTS = {
    "getHours": "hours",
    "getMinutes": "minutes",
    "getSeconds": "seconds",
    "getMilliseconds": "milliseconds",
}

_NAMED_TYPES: dict[str, CelType] = {
    "bool": kinds.BOOL,
    "int": kinds.INT,
    "uint": kinds.UINT,
    "double": kinds.DOUBLE,
    "string": kinds.STRING,
    "bytes": kinds.BYTES,
    "dyn": kinds.DYN,
    "duration": kinds.DURATION,
    "timestamp": kinds.TIMESTAMP,
    "Quantity": kinds.QUANTITY,
    "Semver": kinds.SEMVER,
    "URL": kinds.URL,
    "NamedFormat": kinds.FORMAT,
    "IP": kinds.IP,
    "CIDR": kinds.CIDR,
    **{
        name: CelType("struct", f"kubernetes.authorization.{name}")
        for name in ("Authorizer", "PathCheck", "GroupCheck", "ResourceCheck", "Decision")
    },
}


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function; a member's first argument is its receiver."""

    id: str
    is_member: bool
    args: tuple[CelType, ...]
    result: CelType
    params: tuple[CelType, ...]  # the type parameters it mentions


Functions = dict[str, tuple[Overload, ...]]


@cache
def declared_functions(*, with_includes: bool) -> Functions:
    """Return the functions of an environment."""
    lines = [*_TABLE.strip().splitlines(), *_comparisons(), *_sorting(), *_time_parts(), *_formats()]
    if with_includes:
        lines.append(_INCLUDES)
    functions: dict[str, list[Overload]] = {}
    for line in lines:
        name, overload, signature = line.split(" ", 2)
        functions.setdefault(name, []).append(_parse_overload(overload, signature))
    return {name: tuple(overloads) for name, overloads in functions.items()}


def _comparisons() -> list[str]:
    lines: list[str] = []
    for operator, word in (
        ("_<_", "less"),
        ("_<=_", "less_equals"),
        ("_>_", "greater"),
        ("_>=_", "greater_equals"),
    ):
        pairs = [("bool", "bool", "bool")]
        for left, left_id in _NUMBER_IDS.items():
            pairs.append((left, left, left_id))
            pairs += [(left, right, f"{left_id}_{i}") for right, i in _NUMBER_IDS.items() if right != left]
        pairs += [(name, name, name) for name in ("string", "bytes", "timestamp", "duration")]
        lines += [f"{operator} {word}_{suffix} ({left}, {right}) -> bool" for left, right, suffix in pairs]
    return lines


def _sorting() -> list[str]:
    lines: list[str] = []
    for kind in _COMPARABLE:
        long = _LONG_NAMES.get(kind, kind)
        lines += [
            f"sort list_{long}_sort list({kind}).() -> list({kind})",
            f"@sortByAssociatedKeys list_{long}_sortByAssociatedKeys list(T).(list({kind})) -> list(T)",
            f"isSorted list_{kind}_is_sorted_bool list({kind}).() -> bool",
            f"min list_{kind}_min_{kind} list({kind}).() -> {kind}",
            f"max list_{kind}_max_{kind} list({kind}).() -> {kind}",
        ]
    return lines


def _time_parts() -> list[str]:
    lines: list[str] = []
    for function, part in _TIME_PARTS.items():
        lines.append(f"{function} timestamp_to_{part} timestamp.() -> int")
        lines.append(f"{function} timestamp_to_{part}_with_tz timestamp.(string) -> int")
        if function in _DURATION_PARTS:
            lines.append(f"{function} duration_to_{part} duration.() -> int")
    return lines


def _formats() -> list[str]:
    return [f"format.{name} format.{name} () -> NamedFormat" for name in FORMAT_NAMES]


_WORD = re.compile(r"\s*([A-Za-z]+)")


def _parse_overload(overload: str, signature: str) -> Overload:
    left, result_text = signature.split(" -> ")
    receiver, dot, arguments = left.partition(".(")
    if not dot:
        receiver, arguments = "", left[1:]
    arguments = arguments[:-1]
    args = ([_parse_type(receiver, 0)[0]] if receiver else []) + _parse_types(arguments)
    result = _parse_type(result_text, 0)[0]
    params = dict.fromkeys(p for kind in (*args, result) for p in _parameters(kind))
    return Overload(overload, bool(receiver), tuple(args), result, tuple(params))


def _parse_types(text: str) -> list[CelType]:
    found: list[CelType] = []
    position = 0
    while position < len(text):
        kind, position = _parse_type(text, position)
        found.append(kind)
        position += 1
    return found


def _parse_type(text: str, position: int) -> tuple[CelType, int]:
    match = _WORD.match(text, position)
    assert match is not None, text
    name, position = match.group(1), match.end()
    params: list[CelType] = []
    if text[position : position + 1] == "(":
        while text[position] != ")":
            kind, position = _parse_type(text, position + 1)
            params.append(kind)
        position += 1
    match name:
        case "list":
            return list_of(params[0]), position
        case "map":
            return map_of(*params), position
        case "optional":
            return optional_of(params[0]), position
        case "type":
            return type_of(params[0]), position
    return _NAMED_TYPES.get(name) or parameter(name), position


def _parameters(kind: CelType) -> list[CelType]:
    if kind.kind == "param":
        return [kind]
    return [found for part in kind.params for found in _parameters(part)]
