"""Run chosen workloads at chosen sizes."""

from bench.scheduling.measuring import main

main()
