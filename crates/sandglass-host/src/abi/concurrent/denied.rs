//! Files and sockets of WASI 0.3, which this host denies. There are no folders, and no socket is made,
//! so a guest has nothing whose methods it could call.

use sandglass_supervisor::functions::{Class, FunctionId, Functions, Reads};
use wasmtime::component::{Linker, LinkerInstance, Resource, ResourceType, Val};
use wasmtime::{Error, Result};

use super::pass;
use crate::store::RunStore;

const FILES: &str = "wasi:filesystem/types@0.3";
const PREOPENS: &str = "wasi:filesystem/preopens@0.3";
const SOCKETS: &str = "wasi:sockets/types@0.3";
const NAMES: &str = "wasi:sockets/ip-name-lookup@0.3";

/// The interface and the name of a resource, and its methods, with whether they are asynchronous.
type Methods = (&'static str, &'static str, &'static [(&'static str, bool)]);

/// Methods of descriptors and sockets, of which none exists.
const METHODS: &[Methods] = &[
    (
        FILES,
        "descriptor",
        &[
            ("read-via-stream", false),
            ("write-via-stream", false),
            ("append-via-stream", false),
            ("advise", true),
            ("sync-data", true),
            ("get-flags", true),
            ("get-type", true),
            ("set-size", true),
            ("set-times", true),
            ("read-directory", false),
            ("sync", true),
            ("create-directory-at", true),
            ("stat", true),
            ("stat-at", true),
            ("set-times-at", true),
            ("link-at", true),
            ("open-at", true),
            ("readlink-at", true),
            ("remove-directory-at", true),
            ("rename-at", true),
            ("symlink-at", true),
            ("unlink-file-at", true),
            ("is-same-object", true),
            ("metadata-hash", true),
            ("metadata-hash-at", true),
        ],
    ),
    (
        SOCKETS,
        "tcp-socket",
        &[
            ("bind", false),
            ("connect", true),
            ("listen", false),
            ("send", false),
            ("receive", false),
            ("get-local-address", false),
            ("get-remote-address", false),
            ("get-is-listening", false),
            ("get-address-family", false),
            ("set-listen-backlog-size", false),
            ("get-keep-alive-enabled", false),
            ("set-keep-alive-enabled", false),
            ("get-keep-alive-idle-time", false),
            ("set-keep-alive-idle-time", false),
            ("get-keep-alive-interval", false),
            ("set-keep-alive-interval", false),
            ("get-keep-alive-count", false),
            ("set-keep-alive-count", false),
            ("get-hop-limit", false),
            ("set-hop-limit", false),
            ("get-receive-buffer-size", false),
            ("set-receive-buffer-size", false),
            ("get-send-buffer-size", false),
            ("set-send-buffer-size", false),
        ],
    ),
    (
        SOCKETS,
        "udp-socket",
        &[
            ("bind", false),
            ("connect", false),
            ("disconnect", false),
            ("send", true),
            ("receive", true),
            ("get-local-address", false),
            ("get-remote-address", false),
            ("get-address-family", false),
            ("get-unicast-hop-limit", false),
            ("set-unicast-hop-limit", false),
            ("get-receive-buffer-size", false),
            ("set-receive-buffer-size", false),
            ("get-send-buffer-size", false),
            ("set-send-buffer-size", false),
        ],
    ),
];

/// Stands for descriptors and sockets, of which there are none.
struct Nothing;

/// Links files and sockets.
#[allow(
    clippy::disallowed_methods,
    reason = "each function that can be called passes the boundary"
)]
pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    let mut instance = linker.instance("wasi:filesystem/preopens@0.3.0")?;
    let function = add(functions, PREOPENS, "get-directories");
    instance.func_wrap("get-directories", move |mut store, ()| {
        let store: &mut RunStore = store.data_mut();
        pass(store, function)?;
        Ok((Vec::<(Resource<Nothing>, String)>::new(),))
    })?;

    let mut instance = linker.instance("wasi:sockets/ip-name-lookup@0.3.0")?;
    let function = add(functions, NAMES, "resolve-addresses");
    instance.func_new_concurrent("resolve-addresses", move |calling, _, _, results| {
        let denied = calling.with(|mut access| deny(access.data_mut(), function, results));
        Box::pin(std::future::ready(denied))
    })?;

    for (interface, resource, methods) in METHODS {
        let mut instance = linker.instance(&format!("{interface}.0"))?;
        instance.resource(resource, ResourceType::host::<Nothing>(), |_, _| Ok(()))?;
        if *interface == SOCKETS {
            let create = format!("[static]{resource}.create");
            let function = add(functions, interface, &create);
            instance.func_new(&create, move |mut store, _, _, results| {
                deny(store.data_mut(), function, results)
            })?;
        }
        for (method, is_async) in *methods {
            let method = format!("[method]{resource}.{method}");
            add(functions, interface, &method);
            link_unreachable(&mut instance, &method, *is_async)?;
        }
    }
    Ok(())
}

fn add(functions: &mut Functions, interface: &'static str, function: &str) -> FunctionId {
    let unversioned = interface.split('@').next().unwrap_or(interface);
    let name = format!("{unversioned}.{function}");
    functions.add(interface, function.to_owned(), name, Class::Instant, Reads::Call)
}

/// Calls a function that is denied.
fn deny(store: &mut RunStore, function: FunctionId, results: &mut [Val]) -> Result<()> {
    pass(store, function)?;
    if let Some(result) = results.first_mut() {
        let code = Val::Variant("access-denied".to_owned(), None);
        *result = Val::Result(Err(Some(Box::new(code))));
    }
    Ok(())
}

/// Links a method of a resource that does not exist. Wasmtime refuses a call before it gets here.
#[allow(clippy::disallowed_methods, reason = "no guest can call it")]
fn link_unreachable(
    instance: &mut LinkerInstance<'_, RunStore>,
    method: &str,
    is_async: bool,
) -> Result<()> {
    let nothing = || Error::msg("there are no files and no sockets");
    if is_async {
        instance.func_new_concurrent(method, move |_, _, _, _| {
            Box::pin(std::future::ready(Err(nothing())))
        })
    } else {
        instance.func_new(method, move |_, _, _, _| Err(nothing()))
    }
}
