CREATE TABLE txpool_meta (name text COLLATE "C" PRIMARY KEY, value text NOT NULL);
CREATE TABLE txpool_incarnations (name text COLLATE "C" PRIMARY KEY, node text NOT NULL, lease bigint NOT NULL,
    fenced integer NOT NULL DEFAULT 0);
CREATE TABLE txpool_decisions (gtrid text COLLATE "C" PRIMARY KEY, branches text, made double precision NOT NULL);
CREATE TABLE txpool_finished (gtrid text COLLATE "C" PRIMARY KEY);
CREATE TABLE txpool_pointers (gtrid text COLLATE "C" PRIMARY KEY, datasource text NOT NULL);
CREATE TABLE txpool_heuristics (gtrid text COLLATE "C", bqual text COLLATE "C", datasource text NOT NULL,
    decided text NOT NULL, ended text NOT NULL, noted double precision NOT NULL, PRIMARY KEY (gtrid, bqual));
CREATE TABLE txpool_expired (name text COLLATE "C" PRIMARY KEY, node text NOT NULL, lease bigint NOT NULL,
    since double precision NOT NULL);
CREATE TABLE txpool_memos (kind text COLLATE "C", name text COLLATE "C", text text NOT NULL,
    made double precision NOT NULL, PRIMARY KEY (kind, name));
INSERT INTO txpool_meta VALUES ('format', '1');
INSERT INTO txpool_meta VALUES ('log', '3893a577b3997e6ebb6460690f87ee29');
INSERT INTO txpool_meta VALUES ('server', '@one@');
INSERT INTO txpool_incarnations VALUES ('fwomn8bm6d8z', 'etl-1', 2093823951586437779, 1);
INSERT INTO txpool_incarnations VALUES ('3mkx3oayqhi3', 'etl-1', 477425180966774043, 1);
INSERT INTO txpool_incarnations VALUES ('kgn0gt4r2jf6', 'etl-1', 2693269808130370002, 0);
INSERT INTO txpool_incarnations VALUES ('ztqomklz3y8e', 'etl-1', 4715498263628351246, 0);
INSERT INTO txpool_incarnations VALUES ('k77dm8qa4t8f', 'etl-1', 2658776523066269439, 1);
INSERT INTO txpool_incarnations VALUES ('0n8j4jobwa0q', 'etl-1', 84958081149728186, 0);
INSERT INTO txpool_incarnations VALUES ('0sv86q6hwnxy', 'etl-1', 105543891031943734, 0);
INSERT INTO txpool_incarnations VALUES ('yumurztv12h7', 'etl-1', 4587143830008350155, 0);
INSERT INTO txpool_incarnations VALUES ('39i765s8khjp', 'etl-1', 429618847253093845, 0);
INSERT INTO txpool_incarnations VALUES ('bpytp19gobya', 'etl-1', 1542779515833644674, 0);
INSERT INTO txpool_incarnations VALUES ('s4wy1jp9iiit', 'etl-1', 3703378298944637765, 0);
INSERT INTO txpool_incarnations VALUES ('t9hsfg4d8nnr', 'etl-1', 3851741558282168007, 0);
INSERT INTO txpool_incarnations VALUES ('r4z3ptulc1dq', 'etl-1', 3571975723395190526, 0);
INSERT INTO txpool_incarnations VALUES ('xcgl03vei9bb', 'etl-1', 4389074339119487399, 0);
INSERT INTO txpool_decisions VALUES ('txp1:etl-1:3mkx3oayqhi3:1', '[["0:one:L","one","@one@",{"xid":"@776@","timeline":"00000001"}],["1:two:L","two","@two@",{"xid":"@777@","timeline":"00000001"}]]', 1795317116.7697296);
INSERT INTO txpool_decisions VALUES ('txp1:etl-1:kgn0gt4r2jf6:1', '[["0:one:L","one","@one@",{"xid":"@781@","timeline":"00000001"}],["1:two:L","two","@two@",{"xid":"@782@","timeline":"00000001"}]]', 1795317121.0449426);
INSERT INTO txpool_decisions VALUES ('txp1:etl-1:0sv86q6hwnxy:1', NULL, 1795317126.4166613);
INSERT INTO txpool_finished VALUES ('txp1:etl-1:0n8j4jobwa0q:1');
INSERT INTO txpool_pointers VALUES ('txp1:etl-1:yumurztv12h7:1', 'ledger:8a5b75b21941');
INSERT INTO txpool_pointers VALUES ('txp1:etl-1:39i765s8khjp:1', 'ledger:8a5b75b21941');
INSERT INTO txpool_heuristics VALUES ('txp1:etl-1:xcgl03vei9bb:1', '1:two:L', 'two', 'commit', 'rolled back', 1700000000.0);
INSERT INTO txpool_expired VALUES ('1qx8wmqzpxlp', 'etl-1', 230058427907801437, 1795317134.07888);
INSERT INTO txpool_memos VALUES ('expired', 'txp1:etl-1:fwomn8bm6d8z:1 0:one:L', '["heuristic", "txp1:etl-1:fwomn8bm6d8z:1", ["txp1:etl-1:fwomn8bm6d8z:1", "0:one:L", "one", "commit", "rolled back", 1700000000.0]]', 1795317104.7988012);
INSERT INTO txpool_memos VALUES ('expiry', 'etl-1', '{"incarnation fwomn8bm6d8z": 1795317108.7102878}', 1795317108.7102878);
INSERT INTO txpool_memos VALUES ('audit', '1795317111.959237 20e5de85', '{"when": 1795317111.9592373, "who": "root@host", "command": "suspend", "gtrid": "", "reason": "works on the net", "outcome": "done"}', 1795317111.9592373);
INSERT INTO txpool_memos VALUES ('audit', '1795317115.048751 9cf092b4', '{"when": 1795317115.0487506, "who": "root@host", "command": "resume", "gtrid": "", "reason": "", "outcome": "done"}', 1795317115.0487506);
