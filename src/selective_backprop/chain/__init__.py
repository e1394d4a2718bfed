"""The chain of an epoch. Each stage has `next()`, which gives a batch or None, and a state that nests its source's.

    planned epoch     Ids -> Load                              -> training batches
    scored epoch      Ids -> Load [-> Ahead] -> Select -> Queue -> training batches

Read `steps` first, which makes the chain, then plan, ids, load, select, queue. A loader without ids has the stage
`stream` in place of Ids and Load. Batches by tokens have their own queue, `tokens`.
"""
