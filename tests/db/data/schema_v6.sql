-- Schema 6 of the lab database, with facts of every kind. Frozen: never edited, only migrated from.
PRAGMA application_id = 1096045653;
PRAGMA user_version = 6;
BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'attn_tune.lab','m001_create_lab','2026-11-21 01:02:04.806007+00:00');
INSERT INTO "_sqlite_migrations" VALUES(2,'attn_tune.lab','m002_create_decisions','2026-11-21 01:02:04.806524+00:00');
INSERT INTO "_sqlite_migrations" VALUES(3,'attn_tune.lab','m003_create_imported_packs','2026-11-21 01:02:04.807012+00:00');
INSERT INTO "_sqlite_migrations" VALUES(4,'attn_tune.lab','m004_compact_trials','2026-11-21 02:32:14.547307+00:00');
INSERT INTO "_sqlite_migrations" VALUES(5,'attn_tune.lab','m005_add_compile_facts','2026-11-21 22:15:44.805071+00:00');
INSERT INTO "_sqlite_migrations" VALUES(6,'attn_tune.lab','m006_narrow_trials','2026-11-23 00:08:25.421040+00:00');
CREATE TABLE config (
        id INTEGER PRIMARY KEY,
        kernel_id INTEGER NOT NULL REFERENCES kernel (id),
        direction TEXT NOT NULL,
        part TEXT NOT NULL,
        digest TEXT NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (kernel_id, direction, part, digest)
    ) STRICT;
INSERT INTO "config" VALUES(1,1,'fwd','','b2:7786f328bb89ecef24fa78d1200732aa','{"block_q":64}');
INSERT INTO "config" VALUES(2,1,'fwd','','b2:5ec967307d17da3ba72c5db9ffa59d3c','{"block_q":128}');
INSERT INTO "config" VALUES(3,1,'fwd','','b2:ed0037ca9d3591f8a0c531b5bdb35982','{"block_q":256}');
INSERT INTO "config" VALUES(4,1,'fwd','','b2:c0b8ec0168c8b7c89d528940da19aeca','{"block_q":8}');
INSERT INTO "config" VALUES(5,1,'fwd','','b2:34ea3f4d5b04de4cbc91b6df722b8ec6','{"block_q":9}');
INSERT INTO "config" VALUES(6,1,'bwd','dq','b2:67764d2cb8bdfd9c02923bc503cd4be9','{"block_q":64,"n":"dq"}');
INSERT INTO "config" VALUES(7,1,'bwd','dkv','b2:42db543c9121807b38da32e0f1c0a7b0','{"block_q":64,"n":"dkv"}');
INSERT INTO "config" VALUES(8,2,'fwd','','b2:ca552e1a70bc1e69b34bff96449fb5b8','{"block_q":1}');
INSERT INTO "config" VALUES(9,1,'fwd','','b2:0532e5e0f99872e262813ad68cefa28a','{"block_q":64,"num_warps":4}');
INSERT INTO "config" VALUES(10,1,'fwd','','b2:d8128771159b0e53ac928840d7259ad2','{"block_q":128,"num_warps":4}');
INSERT INTO "config" VALUES(11,1,'fwd','','b2:a7aa6e9fdb24ae264bc8502f158ea9b7','{"block_q":128,"num_warps":8}');
INSERT INTO "config" VALUES(12,1,'fwd','','b2:6a6de7c16e058fc06353ed53b3082bbe','{"block_q":256,"num_warps":8}');
INSERT INTO "config" VALUES(13,1,'fwd','','b2:808dcb299fb8b7e486367ce76fb2ce1c','{"block_q":256,"num_warps":4}');
CREATE TABLE decision (
        signature_id INTEGER NOT NULL REFERENCES signature (id),
        direction TEXT NOT NULL,
        device_id INTEGER NOT NULL REFERENCES device (id),
        rank INTEGER NOT NULL,
        config_id INTEGER NOT NULL REFERENCES config (id),
        environment_id INTEGER NOT NULL REFERENCES environment (id),
        rule TEXT NOT NULL,
        median_ns INTEGER,
        heuristic_ns INTEGER,
        gain REAL,
        regret_bound REAL,
        worst_error REAL,
        ties TEXT NOT NULL,
        samples INTEGER NOT NULL,
        trials INTEGER NOT NULL,
        PRIMARY KEY (signature_id, direction, device_id, rank)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "decision" VALUES(1,'fwd',1,0,2,1,'winner',13038,18025,1.38249731553919308346e+00,0.0,1.99999999999999983346e-01,'[]',12,14);
INSERT INTO "decision" VALUES(2,'fwd',2,0,1,2,'only',1000,NULL,NULL,0.0,1.99999999999999983346e-01,'[]',3,1);
CREATE TABLE device (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        platform TEXT NOT NULL,
        family TEXT NOT NULL,
        variant TEXT NOT NULL,
        units INTEGER NOT NULL,
        shared_bytes INTEGER NOT NULL,
        l2_bytes INTEGER NOT NULL,
        clock_mhz INTEGER NOT NULL,
        bandwidth_gbs INTEGER NOT NULL,
        partition TEXT NOT NULL,
        power_watts INTEGER NOT NULL
    ) STRICT;
INSERT INTO "device" VALUES(1,'b2:53606084e7270045c0d9c50c6524c644','cuda','sm_90','nvidia-h200',132,232448,62914560,1980,4800,'',700);
INSERT INTO "device" VALUES(2,'b2:13213414172313a1fb08429141a9dc2c','tpu','v6e','tpu-v6e',1,0,0,0,0,'',0);
CREATE TABLE device_evidence (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        body TEXT NOT NULL
    ) STRICT;
INSERT INTO "device_evidence" VALUES(1,'b2:255598f58c4c4f8166a1afa2d93121c0','[["uuid","GPU-1"],["driver","570.1"]]');
INSERT INTO "device_evidence" VALUES(2,'b2:7ebb3c7c2a87b1a2f8a7ed729ecb040d','[]');
CREATE TABLE environment (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        jax TEXT NOT NULL,
        jaxlib TEXT NOT NULL,
        triton TEXT NOT NULL,
        compiler TEXT NOT NULL,
        driver TEXT NOT NULL,
        attn_tune TEXT NOT NULL,
        source_hash TEXT NOT NULL
    ) STRICT;
INSERT INTO "environment" VALUES(1,'b2:e01ab299b4c042b1e96b00b4c51b8b5e','0.12.0','0.12.0','3.9.0','','','','b2:source');
INSERT INTO "environment" VALUES(2,'b2:03719a69cf80b02943c4847beb6b1767','0.13.0','0.13.0','3.9.0','','','','b2:source');
CREATE TABLE imported_pack (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        version TEXT NOT NULL,
        manifest TEXT NOT NULL,
        imported_us INTEGER NOT NULL
    ) STRICT;
INSERT INTO "imported_pack" VALUES(1,'b2:c7d351ad77fa39c21f3ae1e36a3acca1','seed','1','{"decision_digest": "b2:1f341e7f7e22bd6af7ea7fb0f80f77f8", "devices": {"b2:13213414172313a1fb08429141a9dc2c": {"bandwidth_gbs": 0, "clock_mhz": 0, "family": "v6e", "l2_bytes": 0, "partition": "", "platform": "tpu", "power_watts": 0, "shared_bytes": 0, "units": 1, "variant": "tpu-v6e"}, "b2:53606084e7270045c0d9c50c6524c644": {"bandwidth_gbs": 4800, "clock_mhz": 1980, "family": "sm_90", "l2_bytes": 62914560, "partition": "", "platform": "cuda", "power_watts": 700, "shared_bytes": 232448, "units": 132, "variant": "nvidia-h200"}}, "environments": {"b2:03719a69cf80b02943c4847beb6b1767": {"attn_tune": "", "compiler": "", "driver": "", "jax": "0.13.0", "jaxlib": "0.13.0", "source_hash": "b2:source", "triton": "3.9.0"}, "b2:e01ab299b4c042b1e96b00b4c51b8b5e": {"attn_tune": "", "compiler": "", "driver": "", "jax": "0.12.0", "jaxlib": "0.12.0", "source_hash": "b2:source", "triton": "3.9.0"}}, "kernels": {"flash_attention/triton": 1}, "tool": "attn-tune unknown"}',1795222924866296);
CREATE TABLE imported_row (
        device_digest TEXT NOT NULL,
        signature TEXT NOT NULL,
        direction TEXT NOT NULL,
        kernel TEXT NOT NULL,
        pack_id INTEGER NOT NULL REFERENCES imported_pack (id),
        rank INTEGER NOT NULL,
        config TEXT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (device_digest, signature, direction, kernel)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "imported_row" VALUES('b2:13213414172313a1fb08429141a9dc2c','flash_attention/v1 b=1 t=8589934592 s=128 n=4 k=2 h=64 v=64 dtype=bfloat16 causal=1 left=3','fwd','triton',1,0,'{"block_q":64}','{"config":{"block_q":64},"device":"b2:13213414172313a1fb08429141a9dc2c","direction":"fwd","env":"b2:03719a69cf80b02943c4847beb6b1767","error_ppm":200000,"gain_ppm":null,"heuristic_ns":null,"kernel":"triton","median_ns":1000,"op":"flash_attention","rank":0,"regret_ppm":0,"samples":3,"signature":"flash_attention/v1 b=1 t=8589934592 s=128 n=4 k=2 h=64 v=64 dtype=bfloat16 causal=1 left=3","state":"only"}');
INSERT INTO "imported_row" VALUES('b2:53606084e7270045c0d9c50c6524c644','flash_attention/v1 b=1 t=128 s=128 n=4 k=2 h=64 v=64 dtype=bfloat16 causal=1','fwd','triton',1,0,'{"block_q":128}','{"config":{"block_q":128},"device":"b2:53606084e7270045c0d9c50c6524c644","direction":"fwd","env":"b2:e01ab299b4c042b1e96b00b4c51b8b5e","error_ppm":200000,"gain_ppm":536892,"heuristic_ns":20038,"kernel":"triton","median_ns":13038,"op":"flash_attention","rank":0,"regret_ppm":0,"samples":12,"signature":"flash_attention/v1 b=1 t=128 s=128 n=4 k=2 h=64 v=64 dtype=bfloat16 causal=1","state":"winner"}');
CREATE TABLE kernel (
        id INTEGER PRIMARY KEY,
        op TEXT NOT NULL,
        name TEXT NOT NULL,
        UNIQUE (op, name)
    ) STRICT;
INSERT INTO "kernel" VALUES(1,'flash_attention','triton');
INSERT INTO "kernel" VALUES(2,'flash_attention','xla');
CREATE TABLE outcome (
        id INTEGER PRIMARY KEY,
        status TEXT NOT NULL,
        stage TEXT NOT NULL,
        is_heuristic INTEGER NOT NULL,
        reason_id INTEGER REFERENCES text (id),
        protocol_id INTEGER REFERENCES protocol (id),
        round_id TEXT NOT NULL,
        CHECK ((status = 'ok') = (protocol_id IS NOT NULL))
    ) STRICT;
INSERT INTO "outcome" VALUES(1,'ok','search',1,NULL,1,'');
INSERT INTO "outcome" VALUES(2,'ok','search',0,NULL,1,'');
INSERT INTO "outcome" VALUES(3,'incorrect','search',0,1,NULL,'');
INSERT INTO "outcome" VALUES(4,'compile_error','search',0,2,NULL,'');
INSERT INTO "outcome" VALUES(5,'ok','final',1,NULL,1,'r1');
INSERT INTO "outcome" VALUES(6,'ok','final',0,NULL,1,'r1');
INSERT INTO "outcome" VALUES(7,'crashed','search',0,2,NULL,'');
INSERT INTO "outcome" VALUES(8,'out_of_resources','search',0,3,NULL,'');
INSERT INTO "outcome" VALUES(9,'compiled','search',0,NULL,NULL,'');
INSERT INTO "outcome" VALUES(10,'predicted','search',0,NULL,NULL,'');
INSERT INTO "outcome" VALUES(11,'ok','final',0,NULL,1,'r9');
INSERT INTO "outcome" VALUES(12,'ok','final',0,NULL,1,'r9/twin');
CREATE TABLE protocol (
        id INTEGER PRIMARY KEY,
        timer TEXT NOT NULL,
        warmup INTEGER NOT NULL,
        flush_l2 INTEGER NOT NULL,
        calls_per_sample INTEGER NOT NULL,
        interleaved INTEGER NOT NULL,
        UNIQUE (timer, warmup, flush_l2, calls_per_sample, interleaved)
    ) STRICT;
INSERT INTO "protocol" VALUES(1,'cupti',3,1,1,0);
CREATE TABLE resources (
        id INTEGER PRIMARY KEY,
        shared_bytes INTEGER,
        registers INTEGER,
        spill_bytes INTEGER
    , facts_id INTEGER REFERENCES text (id)) STRICT;
INSERT INTO "resources" VALUES(1,65536,128,0,NULL);
INSERT INTO "resources" VALUES(2,NULL,255,NULL,NULL);
INSERT INTO "resources" VALUES(3,65536,255,24,NULL);
INSERT INTO "resources" VALUES(4,NULL,NULL,NULL,4);
INSERT INTO "resources" VALUES(5,NULL,NULL,NULL,5);
CREATE TABLE round (
        id INTEGER PRIMARY KEY,
        round_id TEXT NOT NULL UNIQUE,
        sm_clock_mhz_low INTEGER,
        sm_clock_mhz_high INTEGER,
        memory_clock_mhz_low INTEGER,
        memory_clock_mhz_high INTEGER,
        temperature_c_low INTEGER,
        temperature_c_high INTEGER,
        power_w_low INTEGER,
        power_w_high INTEGER,
        throttle TEXT NOT NULL,
        repeats INTEGER NOT NULL
    ) STRICT;
INSERT INTO "round" VALUES(1,'r9',1755,1980,NULL,NULL,40,61,NULL,NULL,'sw_power_cap',1);
CREATE TABLE run (
        id INTEGER PRIMARY KEY,
        uid TEXT NOT NULL UNIQUE,
        device_id INTEGER NOT NULL REFERENCES device (id),
        evidence_id INTEGER NOT NULL REFERENCES device_evidence (id),
        environment_id INTEGER NOT NULL REFERENCES environment (id),
        argv TEXT NOT NULL,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        started_us INTEGER NOT NULL,
        heartbeat_us INTEGER NOT NULL,
        ended_us INTEGER,
        status TEXT NOT NULL CHECK (status IN ('running', 'finished', 'interrupted', 'failed'))
    ) STRICT;
INSERT INTO "run" VALUES(1,'9725bd5aa626dff08d6106e8ac791b08',1,1,1,'["attn-tune", "sweep"]','lab-host',21110,1795222924814950,1795222924826041,1795222924826041,'finished');
INSERT INTO "run" VALUES(2,'22f1051ce9206dd47b6c6cf7c2911b15',2,2,2,'["attn-tune", "sweep"]','lab-host',21110,1795222924826963,1795222924828206,1795222924828206,'interrupted');
INSERT INTO "run" VALUES(3,'1168329f107a86023eb6a31f4bb5ba0a',1,1,1,'["attn-tune", "sweep"]','lab-host',21110,1795299344809066,1795299344819415,1795299344819415,'finished');
CREATE TABLE signature (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        op TEXT NOT NULL,
        version INTEGER NOT NULL,
        text TEXT NOT NULL
    ) STRICT;
INSERT INTO "signature" VALUES(1,'b2:5a887b380c79424433d0ddb8f47ec9f2','flash_attention',1,'flash_attention/v1 b=1 t=128 s=128 n=4 k=2 h=64 v=64 dtype=bfloat16 causal=1');
INSERT INTO "signature" VALUES(2,'b2:4e748347353f60a597ac9df8992158aa','flash_attention',1,'flash_attention/v1 b=1 t=8589934592 s=128 n=4 k=2 h=64 v=64 dtype=bfloat16 causal=1 left=3');
CREATE TABLE signature_field (
        signature_id INTEGER NOT NULL REFERENCES signature (id),
        position INTEGER NOT NULL,
        name TEXT NOT NULL,
        int_value INTEGER,
        text_value TEXT,
        PRIMARY KEY (signature_id, position)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "signature_field" VALUES(1,0,'b',1,NULL);
INSERT INTO "signature_field" VALUES(1,1,'t',128,NULL);
INSERT INTO "signature_field" VALUES(1,2,'s',128,NULL);
INSERT INTO "signature_field" VALUES(1,3,'n',4,NULL);
INSERT INTO "signature_field" VALUES(1,4,'k',2,NULL);
INSERT INTO "signature_field" VALUES(1,5,'h',64,NULL);
INSERT INTO "signature_field" VALUES(1,6,'v',64,NULL);
INSERT INTO "signature_field" VALUES(1,7,'dtype',NULL,'bfloat16');
INSERT INTO "signature_field" VALUES(1,8,'causal',1,NULL);
INSERT INTO "signature_field" VALUES(2,0,'b',1,NULL);
INSERT INTO "signature_field" VALUES(2,1,'t',8589934592,NULL);
INSERT INTO "signature_field" VALUES(2,2,'s',128,NULL);
INSERT INTO "signature_field" VALUES(2,3,'n',4,NULL);
INSERT INTO "signature_field" VALUES(2,4,'k',2,NULL);
INSERT INTO "signature_field" VALUES(2,5,'h',64,NULL);
INSERT INTO "signature_field" VALUES(2,6,'v',64,NULL);
INSERT INTO "signature_field" VALUES(2,7,'dtype',NULL,'bfloat16');
INSERT INTO "signature_field" VALUES(2,8,'causal',1,NULL);
INSERT INTO "signature_field" VALUES(2,9,'left',3,NULL);
CREATE TABLE text (
        id INTEGER PRIMARY KEY,
        digest TEXT NOT NULL UNIQUE,
        body TEXT NOT NULL
    ) STRICT;
INSERT INTO "text" VALUES(1,'b2:c121502f04b6c82a607950c2d102819b','because incorrect');
INSERT INTO "text" VALUES(2,'b2:36be6bb3c122ae4a883f31840feb3932','ptxas: too much');
INSERT INTO "text" VALUES(3,'b2:f4c26e43b8dda4cbb6b68f5d91c790d9','because out_of_resources');
INSERT INTO "text" VALUES(4,'b2:c422d09e9c04a72c060ed8adb6d2e9a1','{"shortage":{"limit":232448,"needed":300000,"resource":"shared"}}');
INSERT INTO "text" VALUES(5,'b2:cc8d1bdd956e96eee7ddb72cea51f7e5','{"prediction":{"high_ns":7000,"low_ns":4000,"model":"roofline 1","ns":5000,"terms":{"visits_ns":12.5}}}');
CREATE TABLE trial_batch (
        first_id INTEGER PRIMARY KEY,
        last_id INTEGER NOT NULL CHECK (last_id >= first_id),
        run_id INTEGER NOT NULL REFERENCES run (id),
        signature_id INTEGER NOT NULL REFERENCES signature (id),
        kernel_id INTEGER NOT NULL REFERENCES kernel (id),
        direction TEXT NOT NULL,
        part TEXT NOT NULL,
        device_id INTEGER NOT NULL REFERENCES device (id),
        evidence_id INTEGER NOT NULL REFERENCES device_evidence (id),
        environment_id INTEGER NOT NULL REFERENCES environment (id),
        started_us INTEGER NOT NULL
    ) STRICT;
INSERT INTO "trial_batch" VALUES(1,5,1,1,1,'fwd','',1,1,1,1700000000000000);
INSERT INTO "trial_batch" VALUES(6,6,1,1,1,'bwd','dq',1,1,1,1700000000000777);
INSERT INTO "trial_batch" VALUES(7,7,1,1,1,'bwd','dkv',1,1,1,1700000000000777);
INSERT INTO "trial_batch" VALUES(8,9,1,1,1,'fwd','',1,1,1,1700000000000000);
INSERT INTO "trial_batch" VALUES(10,10,2,2,1,'fwd','',2,2,2,5);
INSERT INTO "trial_batch" VALUES(11,11,2,1,1,'fwd','',1,1,2,3);
INSERT INTO "trial_batch" VALUES(12,12,2,1,2,'fwd','',1,1,1,1700000000000000);
INSERT INTO "trial_batch" VALUES(13,16,3,1,1,'fwd','',1,1,1,1760000000000001);
INSERT INTO "trial_batch" VALUES(17,17,3,1,1,'fwd','',2,2,1,1760000000400005);
INSERT INTO "trial_batch" VALUES(18,19,3,1,1,'fwd','',1,1,1,1760000000500006);
CREATE TABLE trial_data (
        id INTEGER PRIMARY KEY,
        config_id INTEGER NOT NULL REFERENCES config (id),
        outcome_id INTEGER NOT NULL REFERENCES outcome (id),
        verification_id INTEGER REFERENCES verification (id),
        resources_id INTEGER REFERENCES resources (id),
        started_after_ms INTEGER NOT NULL,
        median_ns INTEGER,
        program INTEGER,
        samples BLOB,
        CHECK ((median_ns IS NULL) = (samples IS NULL))
    ) STRICT;
INSERT INTO "trial_data" VALUES(1,1,1,1,1,0,20000,-2262093434646757251,X'00C801C701');
INSERT INTO "trial_data" VALUES(2,2,2,1,1,0,10001,-2262093434646757251,X'0104D10FDEE3FEFFFFFFFF03');
INSERT INTO "trial_data" VALUES(3,3,3,2,1,0,NULL,-2262093434646757251,NULL);
INSERT INTO "trial_data" VALUES(4,4,4,NULL,NULL,0,NULL,NULL,NULL);
INSERT INTO "trial_data" VALUES(5,5,4,NULL,NULL,0,NULL,81985529216434177,NULL);
INSERT INTO "trial_data" VALUES(6,6,2,1,2,0,1000,81985529216434663,X'001413');
INSERT INTO "trial_data" VALUES(7,7,2,1,2,0,1000,81985529216434663,X'001413');
INSERT INTO "trial_data" VALUES(8,1,5,NULL,1,0,20038,-2262093434646757251,X'4B3D2F21130508162432404E');
INSERT INTO "trial_data" VALUES(9,2,6,NULL,1,0,13038,-2262093434646757251,X'4B3D2F21130508162432404E');
INSERT INTO "trial_data" VALUES(10,1,2,1,1,0,1000,-2262093434646757251,X'001413');
INSERT INTO "trial_data" VALUES(11,1,2,1,1,0,1000,-2262093434646757251,X'001413');
INSERT INTO "trial_data" VALUES(12,8,7,NULL,1,0,NULL,-2262093434646757251,NULL);
INSERT INTO "trial_data" VALUES(13,9,2,1,1,0,20000,81985529216445922,X'00C801C701');
INSERT INTO "trial_data" VALUES(14,10,1,1,3,100,18025,-81985529216495616,X'319601F90132');
INSERT INTO "trial_data" VALUES(15,11,8,NULL,4,200,NULL,NULL,NULL);
INSERT INTO "trial_data" VALUES(16,12,9,NULL,1,300,NULL,-4433129227620021390,NULL);
INSERT INTO "trial_data" VALUES(17,13,10,NULL,5,0,NULL,30,NULL);
INSERT INTO "trial_data" VALUES(18,9,11,1,1,0,20000,81985529216445922,X'00C801C70100C801C70100C801C70100C801C70100C801C70100C801C70100C801C70100C801C701');
INSERT INTO "trial_data" VALUES(19,9,12,1,1,100,20000,81985529216445922,X'00C801C70100C801C70100C801C70100C801C70100C801C70100C801C70100C801C70100C801C701');
CREATE TABLE verification (
        id INTEGER PRIMARY KEY,
        digest BLOB NOT NULL UNIQUE,
        is_right INTEGER NOT NULL
    ) STRICT;
INSERT INTO "verification" VALUES(1,X'907AE53E5956C542',1);
INSERT INTO "verification" VALUES(2,X'206E16633BE45AA0',0);
CREATE TABLE verification_error (
        verification_id INTEGER NOT NULL REFERENCES verification (id),
        position INTEGER NOT NULL,
        output TEXT NOT NULL,
        error REAL,
        allowed REAL,
        PRIMARY KEY (verification_id, position)
    ) STRICT, WITHOUT ROWID;
INSERT INTO "verification_error" VALUES(1,0,'out',0.01,0.05);
INSERT INTO "verification_error" VALUES(2,0,'out',NULL,0.05);
INSERT INTO "verification_error" VALUES(2,1,'lse',1e999,0.1);
CREATE TABLE writer (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        token TEXT NOT NULL,
        host TEXT NOT NULL,
        pid INTEGER NOT NULL,
        scope TEXT NOT NULL,
        process_start TEXT NOT NULL,
        heartbeat_us INTEGER NOT NULL
    ) STRICT;
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
CREATE TRIGGER run_identity_is_fixed
        BEFORE UPDATE OF id, uid, device_id, evidence_id, environment_id, argv, host, pid, started_us ON run
        BEGIN SELECT RAISE(ABORT, 'run is append-only'); END;
CREATE TRIGGER run_is_kept BEFORE DELETE ON run
        BEGIN SELECT RAISE(ABORT, 'run is append-only'); END;
CREATE TRIGGER device_refuses_update BEFORE UPDATE ON device BEGIN SELECT RAISE(ABORT, 'device is append-only'); END;
CREATE TRIGGER device_refuses_delete BEFORE DELETE ON device BEGIN SELECT RAISE(ABORT, 'device is append-only'); END;
CREATE TRIGGER device_evidence_refuses_update BEFORE UPDATE ON device_evidence BEGIN SELECT RAISE(ABORT, 'device_evidence is append-only'); END;
CREATE TRIGGER device_evidence_refuses_delete BEFORE DELETE ON device_evidence BEGIN SELECT RAISE(ABORT, 'device_evidence is append-only'); END;
CREATE TRIGGER environment_refuses_update BEFORE UPDATE ON environment BEGIN SELECT RAISE(ABORT, 'environment is append-only'); END;
CREATE TRIGGER environment_refuses_delete BEFORE DELETE ON environment BEGIN SELECT RAISE(ABORT, 'environment is append-only'); END;
CREATE TRIGGER kernel_refuses_update BEFORE UPDATE ON kernel BEGIN SELECT RAISE(ABORT, 'kernel is append-only'); END;
CREATE TRIGGER kernel_refuses_delete BEFORE DELETE ON kernel BEGIN SELECT RAISE(ABORT, 'kernel is append-only'); END;
CREATE TRIGGER signature_refuses_update BEFORE UPDATE ON signature BEGIN SELECT RAISE(ABORT, 'signature is append-only'); END;
CREATE TRIGGER signature_refuses_delete BEFORE DELETE ON signature BEGIN SELECT RAISE(ABORT, 'signature is append-only'); END;
CREATE TRIGGER signature_field_refuses_update BEFORE UPDATE ON signature_field BEGIN SELECT RAISE(ABORT, 'signature_field is append-only'); END;
CREATE TRIGGER signature_field_refuses_delete BEFORE DELETE ON signature_field BEGIN SELECT RAISE(ABORT, 'signature_field is append-only'); END;
CREATE TRIGGER config_refuses_update BEFORE UPDATE ON config BEGIN SELECT RAISE(ABORT, 'config is append-only'); END;
CREATE TRIGGER config_refuses_delete BEFORE DELETE ON config BEGIN SELECT RAISE(ABORT, 'config is append-only'); END;
CREATE TRIGGER protocol_refuses_update BEFORE UPDATE ON protocol BEGIN SELECT RAISE(ABORT, 'protocol is append-only'); END;
CREATE TRIGGER protocol_refuses_delete BEFORE DELETE ON protocol BEGIN SELECT RAISE(ABORT, 'protocol is append-only'); END;
CREATE TRIGGER text_refuses_update BEFORE UPDATE ON text BEGIN SELECT RAISE(ABORT, 'text is append-only'); END;
CREATE TRIGGER text_refuses_delete BEFORE DELETE ON text BEGIN SELECT RAISE(ABORT, 'text is append-only'); END;
CREATE INDEX trial_batch_problem ON trial_batch (signature_id, device_id);
CREATE INDEX trial_batch_run ON trial_batch (run_id);
CREATE INDEX outcome_parts ON outcome (status, stage, is_heuristic, reason_id, protocol_id, round_id);
CREATE TRIGGER trial_batch_only_grows BEFORE UPDATE ON trial_batch
        WHEN NEW.last_id < OLD.last_id
        BEGIN SELECT RAISE(ABORT, 'trial_batch is append-only'); END;
CREATE TRIGGER trial_batch_is_fixed BEFORE UPDATE OF first_id, run_id, signature_id, kernel_id, direction, part,
        device_id, evidence_id, environment_id, started_us ON trial_batch
        BEGIN SELECT RAISE(ABORT, 'trial_batch is append-only'); END;
CREATE TRIGGER trial_batch_is_kept BEFORE DELETE ON trial_batch
        BEGIN SELECT RAISE(ABORT, 'trial_batch is append-only'); END;
CREATE TRIGGER outcome_refuses_update BEFORE UPDATE ON outcome BEGIN SELECT RAISE(ABORT, 'outcome is append-only'); END;
CREATE TRIGGER outcome_refuses_delete BEFORE DELETE ON outcome BEGIN SELECT RAISE(ABORT, 'outcome is append-only'); END;
CREATE TRIGGER resources_refuses_update BEFORE UPDATE ON resources BEGIN SELECT RAISE(ABORT, 'resources is append-only'); END;
CREATE TRIGGER resources_refuses_delete BEFORE DELETE ON resources BEGIN SELECT RAISE(ABORT, 'resources is append-only'); END;
CREATE TRIGGER verification_refuses_delete BEFORE DELETE ON verification BEGIN SELECT RAISE(ABORT, 'verification is append-only'); END;
CREATE TRIGGER verification_error_refuses_update BEFORE UPDATE ON verification_error BEGIN SELECT RAISE(ABORT, 'verification_error is append-only'); END;
CREATE TRIGGER verification_error_refuses_delete BEFORE DELETE ON verification_error BEGIN SELECT RAISE(ABORT, 'verification_error is append-only'); END;
CREATE TRIGGER round_refuses_update BEFORE UPDATE ON round BEGIN SELECT RAISE(ABORT, 'round is append-only'); END;
CREATE TRIGGER round_refuses_delete BEFORE DELETE ON round BEGIN SELECT RAISE(ABORT, 'round is append-only'); END;
CREATE TRIGGER verification_refuses_update BEFORE UPDATE ON verification
        BEGIN SELECT RAISE(ABORT, 'verification is append-only'); END;
CREATE INDEX resources_parts ON resources (shared_bytes, registers, spill_bytes, facts_id);
CREATE TRIGGER trial_data_measures_what_is_ok BEFORE INSERT ON trial_data
        WHEN (SELECT status = 'ok' FROM outcome WHERE id = NEW.outcome_id) IS NOT (NEW.samples IS NOT NULL)
        BEGIN SELECT RAISE(ABORT, 'a trial has a measurement if and only if it is ok'); END;
CREATE TRIGGER trial_data_refuses_update BEFORE UPDATE ON trial_data BEGIN SELECT RAISE(ABORT, 'trial_data is append-only'); END;
CREATE TRIGGER trial_data_refuses_delete BEFORE DELETE ON trial_data BEGIN SELECT RAISE(ABORT, 'trial_data is append-only'); END;
CREATE VIEW trial AS
    SELECT d.id, b.run_id, b.signature_id, d.config_id, b.device_id, b.evidence_id, b.environment_id, o.status,
           o.stage, o.reason_id, o.is_heuristic, r.shared_bytes, r.registers, r.spill_bytes,
           CASE WHEN d.program >> 16 THEN 'b2:' || printf('%012x', d.program >> 16 & 0xffffffffffff)
                ELSE '' END AS code_digest,
           CASE WHEN d.program & 0xffff THEN ((d.program & 0xfff) << (d.program >> 12 & 0xf)) / 10.0
                END AS compile_ms,
           b.started_us + 1000 * d.started_after_ms AS started_us, r.facts_id
    FROM trial_batch b CROSS JOIN trial_data d ON d.id BETWEEN b.first_id AND b.last_id
    JOIN outcome o ON o.id = d.outcome_id
    LEFT JOIN resources r ON r.id = d.resources_id;
CREATE VIEW measurement AS
    SELECT id AS trial_id, (SELECT protocol_id FROM outcome WHERE outcome.id = outcome_id) AS protocol_id,
           (SELECT round_id FROM outcome WHERE outcome.id = outcome_id) AS round_id, median_ns, samples
    FROM trial_data WHERE samples IS NOT NULL;
CREATE VIEW output_error AS
    SELECT d.id AS trial_id, e.position, e.output, e.error, e.allowed
    FROM trial_data d JOIN verification_error e ON e.verification_id = d.verification_id;
CREATE TRIGGER trial_refuses_insert INSTEAD OF INSERT ON trial BEGIN SELECT RAISE(ABORT, 'trial is append-only'); END;
CREATE TRIGGER trial_refuses_update INSTEAD OF UPDATE ON trial BEGIN SELECT RAISE(ABORT, 'trial is append-only'); END;
CREATE TRIGGER trial_refuses_delete INSTEAD OF DELETE ON trial BEGIN SELECT RAISE(ABORT, 'trial is append-only'); END;
CREATE TRIGGER measurement_refuses_insert INSTEAD OF INSERT ON measurement BEGIN SELECT RAISE(ABORT, 'measurement is append-only'); END;
CREATE TRIGGER measurement_refuses_update INSTEAD OF UPDATE ON measurement BEGIN SELECT RAISE(ABORT, 'measurement is append-only'); END;
CREATE TRIGGER measurement_refuses_delete INSTEAD OF DELETE ON measurement BEGIN SELECT RAISE(ABORT, 'measurement is append-only'); END;
CREATE TRIGGER output_error_refuses_insert INSTEAD OF INSERT ON output_error BEGIN SELECT RAISE(ABORT, 'output_error is append-only'); END;
CREATE TRIGGER output_error_refuses_update INSTEAD OF UPDATE ON output_error BEGIN SELECT RAISE(ABORT, 'output_error is append-only'); END;
CREATE TRIGGER output_error_refuses_delete INSTEAD OF DELETE ON output_error BEGIN SELECT RAISE(ABORT, 'output_error is append-only'); END;
COMMIT;
