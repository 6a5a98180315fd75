BEGIN TRANSACTION;
CREATE TABLE t (id int);
INSERT INTO "t" VALUES(7);
CREATE TABLE xids (xid varchar(64) primary key, transaction_manager_id varchar(64) not null, action_uid varchar(64) not null, kind varchar(6) not null check (kind in ('commit', 'abort')), branches text not null, confirmed integer not null default 0, made_at text not null default current_timestamp);
INSERT INTO "xids" VALUES('txp1:identity','txp1','9a5cd2aea72b','abort','',0,'2026-11-22 03:10:47');
INSERT INTO "xids" VALUES('txp1:etl-1:tsd26dynac31:1','etl-1','tsd26dynac31','commit','[["0:one:M.ledger:9a5cd2aea72b","one","@one@",{"xid":"@773@","timeline":"00000001"}],["1:two:M.ledger:9a5cd2aea72b","two","@two@",{"xid":"@774@","timeline":"00000001"}]]',0,'2026-11-22 03:11:24');
INSERT INTO "xids" VALUES('txp1:etl-1:62uuz8nbgxzz:1','etl-1','62uuz8nbgxzz','abort','[]',0,'2026-11-22 03:11:32');
COMMIT;
