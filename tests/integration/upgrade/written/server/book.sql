CREATE TABLE xids (xid varchar(64) PRIMARY KEY, transaction_manager_id varchar(64) NOT NULL,
    action_uid varchar(64) NOT NULL, kind varchar(6) NOT NULL CHECK (kind IN ('commit', 'abort')),
    branches text NOT NULL, confirmed integer NOT NULL DEFAULT 0, made_at timestamptz NOT NULL DEFAULT now());
INSERT INTO t VALUES (9);
INSERT INTO xids VALUES ('txp1:identity', 'txp1', '4d9e8a179797', 'abort', '@two@', 0, '2026-11-22 03:11:38.741576+00:00');
INSERT INTO xids VALUES ('txp1:etl-1:bpytp19gobya:1', 'etl-1', 'bpytp19gobya', 'commit', '[["0:one:M.book:4d9e8a179797","one","@one@",{"xid":"@808@","timeline":"00000001"}]]', 0, '2026-11-22 03:12:09.861455+00:00');
INSERT INTO xids VALUES ('txp1:etl-1:r4z3ptulc1dq:1', 'etl-1', 'r4z3ptulc1dq', 'abort', '[]', 0, '2026-11-22 03:12:13.854043+00:00');
