;; Is a component with an asynchronous function type, which is a later version of the component model.
;; The host rejects it, and states that the feature is off.
(component
  (import "x" (func async (param "y" (future u32)))))
