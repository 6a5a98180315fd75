BEGIN TRANSACTION;
CREATE TABLE decisions (gtrid TEXT PRIMARY KEY, branches TEXT, made REAL NOT NULL, touched INTEGER NOT NULL DEFAULT 0)
    WITHOUT ROWID;
INSERT INTO "decisions" VALUES('txp1:etl-1:bni7hr4ijmmz:1',NULL,1.79531708247760391234e+09,0);
INSERT INTO "decisions" VALUES('txp1:etl-1:iyit5kszkgc0:1','[["0:one:L","one","@one@",{"xid":"@763@","timeline":"00000001"}],["1:two:L","two","@two@",{"xid":"@764@","timeline":"00000001"}]]',1.79531707471073508257e+09,0);
INSERT INTO "decisions" VALUES('txp1:etl-1:sdn2xntw05xi:1','[["0:one:L","one","@one@",{"xid":"@761@","timeline":"00000001"}],["1:two:L","two","@two@",{"xid":"@762@","timeline":"00000001"}]]',1.79531706811684679987e+09,0);
CREATE TABLE expired (name TEXT PRIMARY KEY, since REAL NOT NULL) WITHOUT ROWID;
INSERT INTO "expired" VALUES('d7emacla05rl',1.79531709390706539159e+09);
CREATE TABLE finished (gtrid TEXT PRIMARY KEY, touched INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
INSERT INTO "finished" VALUES('txp1:etl-1:jz4yrxn1me8a:1',0);
CREATE TABLE heuristics (gtrid TEXT, bqual TEXT, datasource TEXT NOT NULL, decided TEXT NOT NULL, ended TEXT NOT NULL,
    noted REAL NOT NULL, PRIMARY KEY (gtrid, bqual)) WITHOUT ROWID;
INSERT INTO "heuristics" VALUES('txp1:etl-1:w6apk3v9l895:1','1:two:L','two','commit','rolled back',1700000000.0);
CREATE TABLE incarnations (name TEXT PRIMARY KEY, fenced INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
INSERT INTO "incarnations" VALUES('62uuz8nbgxzz',0);
INSERT INTO "incarnations" VALUES('bcaho8a4526w',0);
INSERT INTO "incarnations" VALUES('bni7hr4ijmmz',0);
INSERT INTO "incarnations" VALUES('dj7rquu3pbg4',0);
INSERT INTO "incarnations" VALUES('dzs7kgizq2g6',0);
INSERT INTO "incarnations" VALUES('f1mb8gai2zc0',1);
INSERT INTO "incarnations" VALUES('g4f92hly8bh4',0);
INSERT INTO "incarnations" VALUES('iyit5kszkgc0',0);
INSERT INTO "incarnations" VALUES('jz4yrxn1me8a',0);
INSERT INTO "incarnations" VALUES('q3u1bcm3ozw1',1);
INSERT INTO "incarnations" VALUES('qemqo29yv54y',0);
INSERT INTO "incarnations" VALUES('sdn2xntw05xi',1);
INSERT INTO "incarnations" VALUES('tsd26dynac31',0);
INSERT INTO "incarnations" VALUES('w6apk3v9l895',0);
CREATE TABLE memos (kind TEXT, name TEXT, text TEXT NOT NULL, made REAL NOT NULL,
    PRIMARY KEY (kind, name)) WITHOUT ROWID;
INSERT INTO "memos" VALUES('audit','1795317061.799491 37ab6c29','{"when": 1795317061.7994912, "who": "root@host", "command": "suspend", "gtrid": "", "reason": "works on the net", "outcome": "done"}',1.79531706179949116699e+09);
INSERT INTO "memos" VALUES('audit','1795317065.302563 7d3ab8cd','{"when": 1795317065.3025627, "who": "root@host", "command": "resume", "gtrid": "", "reason": "", "outcome": "done"}',1.79531706530256271363e+09);
INSERT INTO "memos" VALUES('expired','txp1:etl-1:f1mb8gai2zc0:1 0:one:L','["heuristic", "txp1:etl-1:f1mb8gai2zc0:1", ["txp1:etl-1:f1mb8gai2zc0:1", "0:one:L", "one", "commit", "rolled back", 1700000000.0]]',1.79531705423182129854e+09);
INSERT INTO "memos" VALUES('expiry','etl-1','{"incarnation f1mb8gai2zc0": 1795317058.0278738}',1.79531705802787375451e+09);
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('device','@device@');
INSERT INTO "meta" VALUES('format','1');
INSERT INTO "meta" VALUES('full','0');
INSERT INTO "meta" VALUES('inode','@inode@');
INSERT INTO "meta" VALUES('log','27b483e4ca5d6d6030b442b023ac4047');
INSERT INTO "meta" VALUES('machine','@machine@');
INSERT INTO "meta" VALUES('node','etl-1');
CREATE TABLE pointers (gtrid TEXT PRIMARY KEY, datasource TEXT NOT NULL, touched INTEGER NOT NULL DEFAULT 0)
    WITHOUT ROWID;
INSERT INTO "pointers" VALUES('txp1:etl-1:dzs7kgizq2g6:1','ledger:9a5cd2aea72b',0);
INSERT INTO "pointers" VALUES('txp1:etl-1:tsd26dynac31:1','ledger:9a5cd2aea72b',0);
COMMIT;
