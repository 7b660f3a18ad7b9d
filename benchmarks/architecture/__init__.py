"""Small models of public libraries, which `benchmarks/architectures.py` trains under every strategy. catalogue.py has
the models, trial.py trains one in a rank and alone, table.py writes the result."""
