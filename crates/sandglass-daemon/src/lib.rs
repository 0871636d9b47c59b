//! The HTTP interface of a runtime: entities, dispatches, events and modules, as
//! JSON, described by the OpenAPI document that it serves.
