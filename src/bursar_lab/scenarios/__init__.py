"""Scenarios of the lab; `bursar sim` lists them beside those of `bursar.sim.scenarios`."""
