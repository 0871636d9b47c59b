;; Waits for an hour on shared memory.
;; The host rejects it: nothing could end that wait in time.
(module
  (memory (export "memory") 1 1 shared)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (memory.atomic.wait32 (i32.const 0) (i32.const 0) (i64.const 3600000000000))))
