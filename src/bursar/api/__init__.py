"""The same verbs over HTTP, for whoever has no Python: /v1/..., with its OpenAPI document.

ratelimit    the RateLimit fields
problems     answers that say what is wrong
"""
