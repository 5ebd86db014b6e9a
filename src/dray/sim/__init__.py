"""Clusters without processes: snapshots, modelled hardware, pods placed offline, recorded traces replayed."""
