//! Boolean options that may be given as `--name`, `--name=true` or `--name=false`.
//!
//! `--name=false` exists so that the command line can overrule the configuration file.

/// Makes a struct of boolean options, one for each field, with the field's comment as its help.
macro_rules! flags {
    ($(#[$about:meta])+ $name:ident { $($(#[$help:meta])+ $field:ident,)* }) => {
        $(#[$about])+
        #[derive(clap::Args, Clone, Debug, Default)]
        pub struct $name {
            $(
                $(#[$help])+
                #[arg(
                    long,
                    value_name = "BOOL",
                    num_args = 0..=1,
                    require_equals = true,
                    default_missing_value = "true",
                    default_value_t = false,
                    hide_default_value = true,
                    hide_possible_values = true,
                    action = clap::ArgAction::Set,
                )]
                pub $field: bool,
            )*
        }
    };
}

pub(crate) use flags;
