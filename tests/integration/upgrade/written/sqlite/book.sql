CREATE TABLE xids (xid varchar(64) PRIMARY KEY, transaction_manager_id varchar(64) NOT NULL,
    action_uid varchar(64) NOT NULL, kind varchar(6) NOT NULL CHECK (kind IN ('commit', 'abort')),
    branches text NOT NULL, confirmed integer NOT NULL DEFAULT 0, made_at timestamptz NOT NULL DEFAULT now());
INSERT INTO t VALUES (9);
INSERT INTO xids VALUES ('txp1:identity', 'txp1', '98d70fc8dddd', 'abort', '@two@', 0, '2026-11-22 03:10:47.888362+00:00');
INSERT INTO xids VALUES ('txp1:etl-1:bcaho8a4526w:1', 'etl-1', 'bcaho8a4526w', 'commit', '[["0:one:M.book:98d70fc8dddd","one","@one@",{"xid":"@777@","timeline":"00000001"}]]', 0, '2026-11-22 03:11:28.146715+00:00');
INSERT INTO xids VALUES ('txp1:etl-1:dj7rquu3pbg4:1', 'etl-1', 'dj7rquu3pbg4', 'abort', '[]', 0, '2026-11-22 03:11:33.813481+00:00');
