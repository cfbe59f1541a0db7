"""Where bursar meets what others built: each module speaks one system's own language."""
