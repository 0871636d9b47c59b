//! The header of a recording: the inputs of a run before its first host call.

use minicbor::data::Type;
use minicbor::{Decoder, Encoder};
use sandglass_model::{GuestLimits, ModuleHash};

use super::packing::Unreadable;

/// The first item of a recording.
const NAME: &str = "sandglass-recording";
/// The version of recordings of handlers, whose headers have five items.
const OF_HANDLERS: u32 = 1;
/// The version of recordings of nodes, whose headers have the invocation as a sixth item.
const OF_NODES: u32 = 2;
/// The version of recordings of handlers whose contexts contain secrets.
const WITH_SECRETS: u32 = 3;
/// The version of recordings of handlers that can have several calls in flight, with or without
/// secrets in their contexts.
const WITH_TASKS: u32 = 4;

/// The inputs of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The hash of the module.
    pub module: ModuleHash,
    /// The limits of the run.
    pub limits: GuestLimits,
    /// The context in the form of the core ABI, as a CBOR item that has the names of secrets in place
    /// of their values; empty bytes for a node, which has none.
    pub context: Vec<u8>,
    /// The invoked node, if it is not a handler.
    pub node: Option<Invocation>,
    /// Whether the guest can have several calls in flight.
    pub has_tasks: bool,
}

/// The invocation of a node of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Which node of the pack, from 0.
    pub index: u32,
    /// The request, as JSON.
    pub request: Vec<u8>,
}

const WRITABLE: &str = "writing to a Vec cannot fail";

impl Header {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = Encoder::new(Vec::new());
        let limits = serde_json::to_string(&self.limits).expect("plain data");
        let is_plain = Decoder::new(&self.context).datatype().is_ok_and(|kind| kind == Type::Bytes);
        let (items, version) = match &self.node {
            Some(_) => (6, OF_NODES),
            None if self.has_tasks => (5, WITH_TASKS),
            None if is_plain => (5, OF_HANDLERS),
            None => (5, WITH_SECRETS),
        };
        let head = out.array(items).and_then(|out| {
            out.str(NAME)?.u32(version)?.str(&self.module.to_string())?.str(&limits)
        });
        head.expect(WRITABLE).writer_mut().extend(&self.context);
        if let Some(Invocation { index, request }) = &self.node {
            let node = out.array(2).and_then(|out| out.u32(*index)?.bytes(request));
            node.expect(WRITABLE);
        }
        out.into_writer()
    }

    /// Reads the header of a recording.
    ///
    /// # Errors
    /// It is not the header of a recording.
    pub fn read(from: &mut Decoder<'_>) -> Result<Self, Unreadable> {
        let items = from.array()?;
        let no_recording = || Unreadable("it doesn't begin as a recording".to_owned());
        if from.str()? != NAME {
            return Err(no_recording());
        }
        let version = from.u32()?;
        let is_of_a_node = match (version, items) {
            (OF_HANDLERS | WITH_SECRETS | WITH_TASKS, Some(5)) => false,
            (OF_NODES, Some(6)) => true,
            (OF_HANDLERS | OF_NODES | WITH_SECRETS | WITH_TASKS, _) => return Err(no_recording()),
            (other, _) => {
                return Err(Unreadable(format!(
                    "it has version {other}, and this host plays versions {OF_HANDLERS} to \
                     {WITH_TASKS}"
                )));
            }
        };
        let unreadable = |what: &str, why: &dyn std::fmt::Display| {
            Unreadable(format!("its {what} can't be read: {why}"))
        };
        let module = from.str()?.parse().map_err(|error| unreadable("module", &error))?;
        let limits =
            serde_json::from_str(from.str()?).map_err(|error| unreadable("limits", &error))?;
        let begin = from.position();
        from.skip()?;
        let context = from.input()[begin..from.position()].to_vec();
        let node = is_of_a_node.then(|| Invocation::read(from)).transpose()?;
        Ok(Self { module, limits, context, node, has_tasks: version == WITH_TASKS })
    }
}

impl Invocation {
    fn read(from: &mut Decoder<'_>) -> Result<Self, Unreadable> {
        if from.array()? != Some(2) {
            return Err(Unreadable("its invocation can't be read".to_owned()));
        }
        Ok(Self { index: from.u32()?, request: from.bytes()?.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::packing::Packer;
    use super::super::secrets::SeenSecrets;
    use super::*;
    use crate::secret::Secret;

    #[test]
    fn a_header_round_trips_and_handlers_have_the_first_version() {
        let handler = Header {
            module: ModuleHash::of(b"module"),
            limits: GuestLimits::default(),
            context: b"\x42{}".to_vec(),
            node: None,
            has_tasks: false,
        };
        let invocation = Invocation { index: 7, request: b"{\"inputs\":{}}".to_vec() };
        let node = Header { node: Some(invocation), context: vec![0x40], ..handler.clone() };
        let mut seen = SeenSecrets::default();
        seen.add("KEY", &Secret::new("hunter22"));
        let mut packer = Packer::of_answer(&seen, usize::MAX);
        packer.bytes(b"{\"a\":\"hunter22\"}");
        let context = packer.finish().expect("the secret has its usual form");
        let secret = Header { context, ..handler.clone() };
        let tasks = Header { has_tasks: true, ..handler.clone() };
        for (header, version) in [(&handler, 1), (&node, 2), (&secret, 3), (&tasks, 4)] {
            let written = header.write();
            assert_eq!(Header::read(&mut Decoder::new(&written)).as_ref(), Ok(header));
            let mut from = Decoder::new(&written);
            let begin = (from.array().expect("a list"), from.str().expect("its name"));
            assert_eq!(begin, (Some(if version == 2 { 6 } else { 5 }), NAME));
            assert_eq!(from.u32().expect("its version"), version);
        }
        let mut newer = handler.write();
        newer[2 + NAME.len()] = 5;
        let refused = Header::read(&mut Decoder::new(&newer)).expect_err("another version");
        assert!(refused.0.contains("has version 5"), "{refused}");
    }
}
