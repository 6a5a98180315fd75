BEGIN TRANSACTION;
CREATE TABLE t (id int);
INSERT INTO "t" VALUES(7);
CREATE TABLE xids (xid varchar(64) primary key, transaction_manager_id varchar(64) not null, action_uid varchar(64) not null, kind varchar(6) not null check (kind in ('commit', 'abort')), branches text not null, confirmed integer not null default 0, made_at text not null default current_timestamp);
INSERT INTO "xids" VALUES('txp1:identity','txp1','8a5b75b21941','abort','',0,'2026-11-22 03:11:38');
INSERT INTO "xids" VALUES('txp1:etl-1:yumurztv12h7:1','etl-1','yumurztv12h7','commit','[["0:one:M.ledger:8a5b75b21941","one","@one@",{"xid":"@800@","timeline":"00000001"}],["1:two:M.ledger:8a5b75b21941","two","@two@",{"xid":"@801@","timeline":"00000001"}]]',0,'2026-11-22 03:12:07');
INSERT INTO "xids" VALUES('txp1:etl-1:t9hsfg4d8nnr:1','etl-1','t9hsfg4d8nnr','abort','[]',0,'2026-11-22 03:12:12');
COMMIT;
