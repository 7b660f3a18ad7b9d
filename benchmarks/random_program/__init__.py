"""Random training programs, which `benchmarks/random_programs.py` runs under a strategy of Gangline and in one process
of plain PyTorch. program.py has the vocabulary, draw.py chooses, trial.py and alone.py train, judgment.py compares."""
