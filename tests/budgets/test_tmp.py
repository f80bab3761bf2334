import time, pytest
from tests.budgets import grown
from tests.conftest import clean_database
from django.db import connection
def test_grow(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock():
        clean_database()
        t=time.time()
        orig=grown._insert
        def ins(model,count,**c):
            t=time.time(); orig(model,count,**c); print(model.__name__, round(time.time()-t,2))
        grown._insert=ins
        grown.grow(); print("grow",time.time()-t); t=time.time()
        grown.empty(); print("empty",time.time()-t)
