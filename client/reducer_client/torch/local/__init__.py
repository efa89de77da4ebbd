"""Local steps with an outer optimizer: `DiLoCo` and `LocalSGD`."""
