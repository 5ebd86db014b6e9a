"""Run chosen workloads at chosen sizes."""

from bench.scheduling.running import main

raise SystemExit(main())
