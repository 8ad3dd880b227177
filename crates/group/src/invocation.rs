//! A call of a script or a function, as it travels to where it runs.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use keyspace::Moment;
use resp::{Args, Writer};
use script::{Engine, Flags, Library, Script};

/// Who calls a script, as far as that bounds what the script may call. A group only carries it along.
pub trait Caller: Any + Debug + Send + Sync {}

/// What to run.
#[derive(Clone, Debug)]
pub enum Code {
    /// By EVAL.
    Script(Arc<Script>),
    /// By FCALL.
    Function {
        /// Its library.
        library: Arc<Library>,
        /// Its name.
        name: String,
        /// What it says of itself.
        flags: Flags,
    },
}

impl Code {
    /// What it says of itself; nothing if it is of the old kind that says nothing.
    #[inline]
    pub fn flags(&self) -> Option<Flags> {
        match self {
            Self::Script(script) => script.flags,
            Self::Function { flags, .. } => Some(*flags),
        }
    }

    /// The text it comes from.
    pub fn text(&self) -> &[u8] {
        match self {
            Self::Script(script) => &script.text,
            Self::Function { library, .. } => &library.text,
        }
    }

    /// As errors name it.
    pub fn name(&self) -> &str {
        match self {
            Self::Script(script) => script.name(),
            Self::Function { name, .. } => name,
        }
    }

    /// True for a function.
    #[inline]
    pub fn is_function(&self) -> bool {
        matches!(self, Self::Function { .. })
    }

    /// Runs it.
    pub fn run(
        &self,
        engine: &mut Engine,
        call: &script::Call<'_>,
        host: &mut dyn script::Host,
        writer: &mut Writer,
    ) -> script::Ending {
        match self {
            Self::Script(script) => engine.run_script(script, call, host, writer),
            Self::Function { library, name, .. } => engine.run_function(library, name, call, host, writer),
        }
    }
}

/// A call of a script: its code, and where its keys are among the words.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// What is run.
    pub code: Code,
    /// Its keys stand behind their number, from the third word on.
    pub key_count: usize,
    /// It may write nothing.
    pub is_read_only: bool,
    /// The user who calls it, unless that user may do everything.
    pub user: Option<Arc<dyn Caller>>,
}

impl Invocation {
    /// Where the first key is.
    pub const FIRST_KEY: usize = 3;

    /// The declared keys.
    #[inline]
    pub fn keys<'a>(&self, args: Args<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        (Self::FIRST_KEY..Self::FIRST_KEY + self.key_count).map(move |index| args.at(index))
    }

    /// As the engine wants it.
    pub fn call<'a>(&self, args: Args<'a>, moment: Moment, seed: u64) -> script::Call<'a> {
        script::Call { args, first_key: Self::FIRST_KEY, key_count: self.key_count, unix_ms: moment.unix.0, seed }
    }
}
