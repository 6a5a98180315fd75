"""Django's database backend, `ENGINE = "txpool.django"`: see `txpool.django.base`."""
