"""Kubernetes manifests: dicts made from a few settings, and written as YAML. No I/O."""
