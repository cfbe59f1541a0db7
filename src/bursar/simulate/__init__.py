"""What would my tenants get? One period of a policy, request by request.

`demand` says who asks for what, where and when: given as CSV or drawn. `simulation` serves it
with the allocation and the scheduler of the live servers, in the `cluster` that the rate
experiments run on too. `outcome` says what came of it, `report` shows it.
"""
