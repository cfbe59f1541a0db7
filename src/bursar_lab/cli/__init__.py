"""The lab's commands; `bursar.cli` registers them where the lab is installed."""
