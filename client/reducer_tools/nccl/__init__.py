"""The NCCL plugin as NCCL sees it: finds the plugin, calls its tables, and checks that it works."""
