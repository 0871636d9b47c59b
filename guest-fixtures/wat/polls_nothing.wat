;; Polls for no event at all, over and over.
;; The host returns each poll, and ends the guest at its deadline.
(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (drop (call $poll_oneoff (i32.const 64) (i32.const 128) (i32.const 0) (i32.const 256)))
      (br $again))
    (unreachable)))
