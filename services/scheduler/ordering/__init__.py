"""Which call goes next, and which model is loaded next: pure, decided from facts and an injected clock.

`desk` is the door: it folds facts into what waits and what each slot does, and asks a policy. `fair` is the engine's policy,
`references` are the ones it is compared with, `simulate` drives any of them over recorded arrivals,
`places` tells whoever waits where it stands. `design.md` has the reasons.
Source: key-services 6.1 (pins), 6.3 (two queues, grouping by model, target, pins).
"""
