"""The agent's metrics, by name. The module that observes an event counts it here; nothing here decides."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

slots = Gauge("gangline_agent_slots", "Slots of this agent by state", ["state"])
runners = Gauge("gangline_agent_runners", "Trial runners that this agent watches")
journaled = Gauge("gangline_agent_journaled_allocations", "Allocations in the journal, ended ones included")
runner_starts = Counter(
    "gangline_agent_runner_starts_total",
    "Trial runners started: warm (forked), cold, or reused (short commands)",
    ["kind"],
)
runner_exits = Counter("gangline_agent_runner_exits_total", "Ended allocations by their exit's kind", ["kind"])
template_up = Gauge("gangline_agent_template_up", "1 while the fork server runs", ["template"])
stream_connected = Gauge("gangline_agent_stream_connected", "1 while a leading scheduler has welcomed this agent")
stream_attempts = Counter("gangline_agent_stream_attempts_total", "Connections tried, by how they ended", ["result"])
heartbeat_age = Gauge("gangline_agent_heartbeat_age_seconds", "Since the last heartbeat was handed to the stream")
leader_silence = Gauge(
    "gangline_agent_leader_silence_seconds",
    "Since this agent sent the newest heartbeat that the leader has answered; NaN while it is late itself",
)
commands = Counter(
    "gangline_agent_commands_total", "Commands of the scheduler, by what was done", ["command", "result"]
)
state_bytes = Gauge("gangline_agent_state_directory_bytes", "Size of the files in the state directory")
state_disk_bytes = Gauge("gangline_agent_state_directory_disk_bytes", "Size of the file system of the state directory")
state_disk_free_bytes = Gauge("gangline_agent_state_directory_disk_free_bytes", "Free bytes of that file system")
undelivered_attempts = Gauge(
    "gangline_agent_undelivered_attempts", "Ended attempts whose logs and metrics wait on disk: no gateway takes them"
)
undelivered_bytes = Gauge("gangline_agent_undelivered_bytes", "Size of these logs and metrics")
undelivered_age = Gauge("gangline_agent_undelivered_age_seconds", "Since the oldest of these attempts left them")
code_cache_bytes = Gauge("gangline_agent_code_cache_bytes", "Size of the code archives that this machine keeps")
code_fetches = Counter("gangline_agent_code_fetches_total", "Downloads of code archives from gateways by this machine")
code_fetched_bytes = Counter("gangline_agent_code_fetched_bytes_total", "Bytes of these downloads")
gpu_utilization = Gauge("gangline_agent_gpu_utilization_ratio", "How busy the GPU is, by NVML", ["uuid"])
gpu_memory_used = Gauge("gangline_agent_gpu_memory_used_bytes", "GPU memory in use, by NVML", ["uuid"])
gpu_memory_total = Gauge("gangline_agent_gpu_memory_bytes", "GPU memory, by NVML", ["uuid"])
gpu_xids = Counter("gangline_agent_gpu_xid_total", "XIDs that the driver reported, by what they are about", ["kind"])
