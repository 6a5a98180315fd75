"""An order, as each alias has it."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)

    class Meta:
        app_label = "shop"


class Value(models.Model):
    at = models.TimeField()
    moment = models.DateTimeField()
    amount = models.DecimalField(max_digits=8, decimal_places=2)
    data = models.JSONField()
    small = models.PositiveSmallIntegerField()

    class Meta:
        app_label = "shop"


class Line(models.Model):
    # The database checks it when it commits.
    order = models.ForeignKey(Order, models.CASCADE)

    class Meta:
        app_label = "shop"
