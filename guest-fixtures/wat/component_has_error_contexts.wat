;; Is a component that passes error contexts, which no version of WASI uses yet.
;; The host rejects it, and states that the feature is off.
(component
  (import "x" (func async (param "y" error-context))))
