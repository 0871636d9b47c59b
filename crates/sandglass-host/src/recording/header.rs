//! What a recording begins with: all that a run is given before its first host call.

use minicbor::{Decoder, Encoder};
use sandglass_model::{GuestLimits, ModuleHash};

use super::passing::Unreadable;

/// What the first item of a recording says.
const NAME: &str = "sandglass-recording";
/// The version of what this host writes and plays.
const VERSION: u32 = 1;

/// What a run was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) module: ModuleHash,
    pub(crate) limits: GuestLimits,
    /// The context, as core modules get it.
    pub(crate) context: Vec<u8>,
}

impl Header {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = Encoder::new(Vec::new());
        let limits = serde_json::to_string(&self.limits).expect("plain data");
        out.array(5)
            .and_then(|out| {
                out.str(NAME)?.u32(VERSION)?.str(&self.module.to_string())?.str(&limits)
            })
            .and_then(|out| out.bytes(&self.context))
            .expect("memory takes what is written");
        out.into_writer()
    }

    pub(crate) fn read(from: &mut Decoder<'_>) -> Result<Self, Unreadable> {
        if from.array()? != Some(5) || from.str()? != NAME {
            return Err(Unreadable("it doesn't begin as a recording".to_owned()));
        }
        match from.u32()? {
            VERSION => {}
            other => {
                return Err(Unreadable(format!(
                    "it has version {other}, and this host plays version {VERSION}"
                )));
            }
        }
        let unreadable = |what: &str, why: &dyn std::fmt::Display| {
            Unreadable(format!("its {what} can't be read: {why}"))
        };
        let module = from.str()?.parse().map_err(|error| unreadable("module", &error))?;
        let limits =
            serde_json::from_str(from.str()?).map_err(|error| unreadable("limits", &error))?;
        Ok(Self { module, limits, context: from.bytes()?.to_vec() })
    }
}
