"""Each request of a web application as one transaction: `txpool.web.wsgi`, `txpool.web.asgi`, `txpool.web.fastapi`."""
