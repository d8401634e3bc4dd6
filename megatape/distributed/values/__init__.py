"""Python values that ranks exchange, never by pickle.

Where to look:

* serialization.py: values as JSON.
* exchange.py: gathers values by collectives, and raises a rank's errors on all ranks.
* rank_differences.py: compares gathered values, for messages.
* messages.py: signed messages in the ranks' store, for ranks that cannot call a collective.
"""
