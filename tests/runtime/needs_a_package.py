import not_installed_anywhere  # noqa: F401  a kind whose package is missing
