"""Batches of model providers: work that can wait is parked, collected, sent together, and answered whenever the provider gets to it.

A parked run is accepted, as one of an agent that answered 202: no worker waits for it. Its item is bound to a batch before anything is
sent, in PostgreSQL. Whoever looks after batches may die at any moment; somebody else goes on after a lease. Two at once do no harm:
an answer counts by the fencing number of its run, once.

    parking     a run's request is kept, instead of an answer
    gathering   what is collected for one provider, credential and model is bound to a batch, by number, size and age
    tending     every batch that is due takes its next step
    sending     a batch is sent once, and found again when the answer to that was lost
    collecting  a batch that was sent is looked at, and its answers are taken in
    steps       what these three do with a batch's rows
    settling    what an answer means for its run
    awaiting    what parked work waits for, in words
    leaving     what is wanted soon goes to the real-time route
"""
