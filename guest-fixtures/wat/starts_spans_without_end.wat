;; Starts spans, each inside the one before, with an event each, and ends none, forever.
;; The host keeps as many as a run may have, counts the others, and ends the guest at its deadline.
(module
  (import "env" "host_start_span" (func $start_span (param i32 i32) (result i64)))
  (import "env" "host_add_span_event" (func $add_span_event (param i64 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"name\":\"x\",\"attributes\":{\"a\":1}}")
  (data (i32.const 64) "{\"name\":\"e\"}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (loop $again
      (drop (call $add_span_event
        (call $start_span (i32.const 16) (i32.const 33)) (i32.const 64) (i32.const 12)))
      (br $again))
    (unreachable)))
