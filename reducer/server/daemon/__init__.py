"""The main process: takes connections, runs the lanes, answers on the metrics port."""
