"""Money: what runs have consumed (`ledger`), how much they may (`budgets`), and what is put aside for those that run (`reservations`).

Amounts are exact decimals. Budgets are the last rows that a transaction locks, in the order of their ids.
"""
