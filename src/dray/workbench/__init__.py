"""Tools that read a cluster or manifests and report: lint, conversion, explanations, inventory, pictures."""
