"""The manager over HTTP: the endpoints (``server``), who may use them (``guard``, ``sessions``, ``connections``), what
they show (``views``), and Prometheus' figures. The page that a browser shows is in ``dashboard``. Start with
``server``.
"""
