"""The parts of the benchmark of the page: the list, charts and logs, reports as they come in, and MLflow's page."""
