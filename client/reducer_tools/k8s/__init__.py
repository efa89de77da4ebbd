"""Makes Kubernetes manifests, as dicts, from a few settings. No I/O."""
