//! Expressions that tell which elements VSIM may find, by their attributes.
//!
//! An expression is turned into a program of values and operators in the order in which they are carried out
//! (Dijkstra's shunting yard), so no expression needs a deep stack. Values are numbers, strings and arrays of these;
//! true and false are 1 and 0. An element without a field that the program reads does not match.

use std::borrow::Cow;

use memchr::memmem;

use crate::json::{Json, parse};

/// Longest expression, in bytes.
const TEXT_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Open,
    Close,
    Not,
    Power,
    Multiply,
    Divide,
    Modulo,
    Add,
    Subtract,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
    In,
    And,
    Or,
}

/// How operators are written. Of those that fit, the longest counts.
const WORDS: [(&str, Operator); 21] = [
    ("(", Operator::Open),
    (")", Operator::Close),
    ("!", Operator::Not),
    ("not", Operator::Not),
    ("**", Operator::Power),
    ("*", Operator::Multiply),
    ("/", Operator::Divide),
    ("%", Operator::Modulo),
    ("+", Operator::Add),
    ("-", Operator::Subtract),
    (">=", Operator::GreaterOrEqual),
    (">", Operator::Greater),
    ("<=", Operator::LessOrEqual),
    ("<", Operator::Less),
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("in", Operator::In),
    ("and", Operator::And),
    ("&&", Operator::And),
    ("or", Operator::Or),
    ("||", Operator::Or),
];

impl Operator {
    /// Which of two is carried out first: the larger.
    fn precedence(self) -> u8 {
        match self {
            Self::Or => 0,
            Self::And => 1,
            Self::Greater
            | Self::GreaterOrEqual
            | Self::Less
            | Self::LessOrEqual
            | Self::Equal
            | Self::NotEqual
            | Self::In => 2,
            Self::Add | Self::Subtract => 3,
            Self::Multiply | Self::Divide | Self::Modulo => 4,
            Self::Power => 5,
            Self::Not => 6,
            Self::Open | Self::Close => 7,
        }
    }

    fn operands(self) -> usize {
        match self {
            Self::Open | Self::Close => 0,
            Self::Not => 1,
            _ => 2,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Value<'a> {
    Null,
    Number(f64),
    Text(Cow<'a, [u8]>),
    Array(Vec<Value<'a>>),
}

#[derive(Clone, Debug)]
enum Step {
    Value(Value<'static>),
    Field(String),
    Operator(Operator),
}

/// An expression, ready to be asked about elements.
#[derive(Clone, Debug)]
pub(crate) struct Expression {
    program: Vec<Step>,
}

/// From where on an expression is wrong; from its beginning if its parts do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrong(pub(crate) usize);

impl Expression {
    /// Reads an expression.
    ///
    /// # Errors
    /// Where it is none.
    pub(crate) fn read(text: &[u8]) -> Result<Self, Wrong> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Wrong(TEXT_BYTES_MAX));
        }
        let mut compiler = Compiler::default();
        let mut tokens = Tokens { text, at: 0, may_be_signed: true };
        while let Some(step) = tokens.next_token()? {
            match step {
                Step::Operator(operator) => compiler.take(operator)?,
                value => compiler.push_value(value),
            }
        }
        compiler.finish()
    }

    /// True if an element with these attributes may be found.
    pub(crate) fn accepts(&self, attributes: Option<&[u8]>) -> bool {
        let Some(Ok(document)) = attributes.map(parse::parse) else { return false };
        self.run(&document).is_some_and(|value| value.is_true())
    }

    /// What comes out: nothing of what the program or the document has is copied for it.
    fn run<'a>(&'a self, document: &'a Json) -> Option<Cow<'a, Value<'a>>> {
        let mut stack: Vec<Cow<'a, Value<'a>>> = Vec::new();
        for step in &self.program {
            let value = match step {
                Step::Value(value) => Cow::Borrowed(value),
                Step::Field(name) => Cow::Owned(value_of(document.as_object()?.get(name)?)?),
                Step::Operator(Operator::Not) => Cow::Owned(truth(!stack.pop()?.is_true())),
                Step::Operator(operator) => {
                    let (right, left) = (stack.pop()?, stack.pop()?);
                    Cow::Owned(apply(*operator, &left, &right))
                }
            };
            stack.push(value);
        }
        stack.pop()
    }
}

fn truth(is_true: bool) -> Value<'static> {
    Value::Number(f64::from(u8::from(is_true)))
}

/// What a field is in an expression; `None` for what has no place there.
fn value_of(field: &Json) -> Option<Value<'_>> {
    Some(match field {
        Json::Bool(is_true) => truth(*is_true),
        Json::Null => Value::Null,
        field if field.is_number() => Value::Number(field.as_double()?),
        field => match (field.as_str(), field.as_array()) {
            (Some(text), _) => Value::Text(Cow::Borrowed(text.as_bytes())),
            (None, Some(items)) => {
                let item_of = |item| value_of(item).filter(|value| !matches!(value, Value::Array(_)));
                Value::Array(items.iter().map(item_of).collect::<Option<_>>()?)
            }
            _ => return None,
        },
    })
}

impl Value<'_> {
    fn is_true(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Number(number) => *number != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::Array(_) => true,
        }
    }

    /// The number that it is, or that its text is; 0 for everything else.
    fn number(&self) -> f64 {
        match self {
            Self::Number(number) => *number,
            Self::Text(text) => crate::double::parse(text).unwrap_or(0.0),
            Self::Null | Self::Array(_) => 0.0,
        }
    }

    /// True if they are equal; `number` is [`Value::number`] of this one, which is reckoned once for all that it is
    /// compared with.
    fn equals(&self, number: f64, other: &Value<'_>) -> bool {
        match (self, other) {
            (Self::Text(left), Value::Text(right)) => left == right,
            (Self::Null, _) | (_, Value::Null) => matches!((self, other), (Self::Null, Value::Null)),
            _ => number == other.number(),
        }
    }
}

fn apply(operator: Operator, left: &Value<'_>, right: &Value<'_>) -> Value<'static> {
    let (a, b) = (left.number(), right.number());
    match operator {
        Operator::Power => Value::Number(libm::pow(a, b)),
        Operator::Multiply => Value::Number(a * b),
        Operator::Divide => Value::Number(a / b),
        Operator::Modulo => Value::Number(a % b),
        Operator::Add => Value::Number(a + b),
        Operator::Subtract => Value::Number(a - b),
        Operator::Greater => truth(a > b),
        Operator::GreaterOrEqual => truth(a >= b),
        Operator::Less => truth(a < b),
        Operator::LessOrEqual => truth(a <= b),
        Operator::Equal => truth(left.equals(a, right)),
        Operator::NotEqual => truth(!left.equals(a, right)),
        Operator::In => truth(match (left, right) {
            (_, Value::Array(items)) => items.iter().any(|item| left.equals(a, item)),
            (Value::Text(part), Value::Text(whole)) => memmem::find(whole, part).is_some(),
            _ => false,
        }),
        Operator::And => truth(left.is_true() && right.is_true()),
        Operator::Or => truth(left.is_true() || right.is_true()),
        Operator::Not | Operator::Open | Operator::Close => unreachable!("these have no two operands"),
    }
}

/// Brings operators behind their operands.
#[derive(Default)]
struct Compiler {
    program: Vec<Step>,
    /// Operators that wait for their operands.
    waiting: Vec<Operator>,
    /// Values that are there when the program has run so far.
    depth: usize,
}

impl Compiler {
    fn push_value(&mut self, value: Step) {
        self.program.push(value);
        self.depth += 1;
    }

    fn take(&mut self, operator: Operator) -> Result<(), Wrong> {
        match operator {
            Operator::Open => self.waiting.push(operator),
            Operator::Close => loop {
                match self.waiting.pop().ok_or(Wrong(0))? {
                    Operator::Open => break,
                    inner => self.emit(inner)?,
                }
            },
            _ => {
                // The power of a power is reckoned from the right, and so is what is not.
                let is_from_right = matches!(operator, Operator::Power | Operator::Not);
                while let Some(&before) = self.waiting.last()
                    && before != Operator::Open
                    && (before.precedence() > operator.precedence()
                        || before.precedence() == operator.precedence() && !is_from_right)
                {
                    self.waiting.pop();
                    self.emit(before)?;
                }
                self.waiting.push(operator);
            }
        }
        Ok(())
    }

    fn emit(&mut self, operator: Operator) -> Result<(), Wrong> {
        self.depth = self.depth.checked_sub(operator.operands()).ok_or(Wrong(0))? + 1;
        self.program.push(Step::Operator(operator));
        Ok(())
    }

    fn finish(mut self) -> Result<Expression, Wrong> {
        while let Some(operator) = self.waiting.pop() {
            if operator == Operator::Open {
                return Err(Wrong(0));
            }
            self.emit(operator)?;
        }
        if self.depth == 1 { Ok(Expression { program: self.program }) } else { Err(Wrong(0)) }
    }
}

/// What an expression is made of.
struct Tokens<'t> {
    text: &'t [u8],
    at: usize,
    /// A minus before a digit belongs to the number: there is nothing before it that could be made less.
    may_be_signed: bool,
}

impl Tokens<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn next_is_digit(&self, ahead: usize) -> bool {
        self.text.get(self.at + ahead).is_some_and(u8::is_ascii_digit)
    }

    /// The next step; `None` at the end.
    fn next_token(&mut self) -> Result<Option<Step>, Wrong> {
        self.skip_spaces();
        let Some(first) = self.peek() else { return Ok(None) };
        let step = match first {
            b'-' if self.may_be_signed && self.next_is_digit(1) => Step::Value(self.number()?),
            b'0'..=b'9' => Step::Value(self.number()?),
            b'"' | b'\'' => Step::Value(self.string(first)?),
            b'.' if self.text.get(self.at + 1).is_some_and(|&byte| is_of_name(byte)) => self.field(),
            b'[' => Step::Value(self.array()?),
            _ => self.operator()?,
        };
        self.may_be_signed = matches!(step, Step::Operator(operator) if operator != Operator::Close);
        Ok(Some(step))
    }

    fn number(&mut self) -> Result<Value<'static>, Wrong> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        while let Some(byte) = self.peek() {
            let is_exponent =
                matches!(self.text[start..self.at].last(), Some(b'e' | b'E')) && matches!(byte, b'-' | b'+');
            if !(byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E') || is_exponent && self.next_is_digit(1)) {
                break;
            }
            self.at += 1;
        }
        let number = crate::double::parse(&self.text[start..self.at]).ok_or(Wrong(self.at))?;
        Ok(Value::Number(number))
    }

    /// A string; behind a backslash `n`, `r` and `t` are what they are in JSON, and everything else is itself.
    fn string(&mut self, quote: u8) -> Result<Value<'static>, Wrong> {
        self.at += 1;
        let mut text = Vec::new();
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'\\' if self.peek().is_some() => {
                    text.push(match self.text[self.at] {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        other => other,
                    });
                    self.at += 1;
                }
                byte if byte == quote => return Ok(Value::Text(Cow::Owned(text))),
                byte => text.push(byte),
            }
        }
        Err(Wrong(self.at))
    }

    fn field(&mut self) -> Step {
        let start = self.at + 1;
        self.at = start;
        while self.peek().is_some_and(is_of_name) {
            self.at += 1;
        }
        Step::Field(self.text[start..self.at].iter().map(|&byte| char::from(byte)).collect())
    }

    fn array(&mut self) -> Result<Value<'static>, Wrong> {
        self.at += 1;
        let mut items = Vec::new();
        loop {
            self.skip_spaces();
            match self.peek().ok_or(Wrong(self.at))? {
                b']' => break,
                quote @ (b'"' | b'\'') => items.push(self.string(quote)?),
                b'-' | b'0'..=b'9' => items.push(self.number()?),
                _ => return Err(Wrong(self.at)),
            }
            self.skip_spaces();
            match self.peek().ok_or(Wrong(self.at))? {
                b']' => break,
                b',' => self.at += 1,
                _ => return Err(Wrong(self.at)),
            }
        }
        self.at += 1;
        Ok(Value::Array(items))
    }

    fn operator(&mut self) -> Result<Step, Wrong> {
        let rest = &self.text[self.at..];
        if rest.starts_with(b"null") && !rest.get(4).is_some_and(u8::is_ascii_alphanumeric) {
            self.at += 4;
            return Ok(Step::Value(Value::Null));
        }
        let fitting = WORDS.iter().filter(|(word, _)| rest.starts_with(word.as_bytes()));
        let Some((word, operator)) = fitting.max_by_key(|(word, _)| word.len()) else {
            let word = rest.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
            return Err(Wrong(self.at + word));
        };
        self.at += word.len();
        Ok(Step::Operator(*operator))
    }
}

/// True for what the name of a field can have.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}
