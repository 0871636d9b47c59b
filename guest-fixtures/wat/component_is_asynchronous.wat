;; Is a component with an asynchronous function type, which is a later version of the component model.
;; The host refuses it, and says that the feature is off.
(component
  (import "x" (func async (param "y" (future u32)))))
