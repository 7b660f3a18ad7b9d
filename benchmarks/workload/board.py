"""Writes a TensorBoard event file of one metric, or reads it as TensorBoard does and prints the seconds.

`board.py FOLDER REPORTS write`, or `board.py FOLDER REPORTS read POINTS`. benchmarks/long_series.py runs it in an
environment that has TensorBoard.
"""

import random
import sys
import time

folder, num_reports, action = sys.argv[1], int(sys.argv[2]), sys.argv[3]

if action == "write":
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(folder, max_queue=10_000)
    draw = random.Random(0)
    for batches in range(1, num_reports + 1):
        writer.add_scalar("loss", draw.gauss(1, 0.1), batches)
    writer.close()
else:
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    began = time.perf_counter()
    accumulator = EventAccumulator(folder, size_guidance={SCALARS: int(sys.argv[4])})
    accumulator.Reload()
    num_points = len(accumulator.Scalars("loss"))
    print(time.perf_counter() - began)
    assert num_points <= int(sys.argv[4])
