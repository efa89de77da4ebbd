"""`reducer doctor`: examines every reducer from this host as a worker would, and the host itself.

Findings say what is wrong and what to do.
"""
