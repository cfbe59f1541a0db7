"""The storm: a fleet of real processes, its users and its bad nights, through the public door.

checker    decides from the histories alone what was kept and what was broken; knows nothing of bursar
witness    writes down when the machine itself stood still
"""
